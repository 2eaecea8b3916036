"""Chapter 03's exercises: a mean over ranks from two halves, and a mean loss printed by one rank."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from ddp_src.exercises._exercise import Exercise, Feedback, WrongAnswer

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


def mean_over_ranks(x: Tensor) -> Tensor:
    """The mean of all ranks' `x`, which has one dimension and any length."""
    world_size = dist.get_world_size()
    share = math.ceil(len(x) / world_size)
    padded = F.pad(x, (0, share * world_size - len(x)))  # zeros at the end
    own = x.new_empty(share)
    dist.reduce_scatter(own, list(padded.split(share)))
    own /= world_size
    parts = [torch.empty_like(own) for _ in range(world_size)]
    dist.all_gather(parts, own)
    return torch.cat(parts)[: len(x)]


def print_mean_loss(loss: Tensor) -> None:
    """Print the mean of all ranks' losses, on rank 0 only. `loss` stays as it is."""
    total = loss.clone()  # all_reduce overwrites what it is given
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        print(f"mean loss {total.item() / dist.get_world_size():.4f}")


@dataclass(frozen=True)
class Mean:
    """What one rank's answer gave for vectors of `length` numbers, and the mean that is right."""

    length: int
    given: list[float]
    mean: list[float]


def try_mean(fn: Callable, length: int) -> Mean:
    """Rank r has 1, 2, 3, … times 10^r. An error at a length that N does not divide is told as that."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    counting = torch.arange(1.0, length + 1)
    mean = counting * sum(10**r for r in range(ranks)) / ranks
    try:
        with _all_reduce_forbidden():
            given = fn(counting * 10**rank)
    except (RuntimeError, ValueError) as error:
        theirs = isinstance(error, NotImplementedError) or "peer" in str(error)
        if theirs or length % ranks == 0:
            raise
        what = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise WrongAnswer(
            f"length {length} on {ranks} ranks: your function raises {what}; "
            f"pad x with zeros to a multiple of {ranks}, and cut the padding off at the end.",
            f"长度 {length}、{ranks} 个 rank：你的函数抛出了 {what}；"
            f"先用零把 x 补齐到 {ranks} 的倍数，最后再把补的部分去掉。",
        ) from error
    if not isinstance(given, Tensor):
        kind = type(given).__name__
        raise WrongAnswer(
            f"your function returns a {kind} where a tensor of {length} numbers is expected.",
            f"你的函数返回了 {kind}，而这里要的是有 {length} 个数的张量。",
        )
    return Mean(length, given.detach().flatten().tolist(), mean.tolist())


@contextmanager
def _all_reduce_forbidden() -> Iterator[None]:
    def refuse(*_: object, **__: object) -> None:
        raise WrongAnswer(
            "your function calls all_reduce: build it from reduce_scatter and all_gather instead.",
            "你的函数调用了 all_reduce：这道题要用 reduce_scatter 和 all_gather 把它搭出来。",
        )

    with patch.object(dist, "all_reduce", refuse):
        yield


def judge_means(results: Sequence[Sequence[Mean]]) -> Feedback | None:
    for ranks in results:
        for rank, one in enumerate(ranks):
            if diagnosis := _diagnose_mean(one, rank, len(ranks)):
                return diagnosis
    return None


def _diagnose_mean(one: Mean, rank: int, ranks: int) -> Feedback | None:
    given, mean, length = one.given, one.mean, one.length
    if len(given) < length:
        return Feedback(
            f"length {length} on {ranks} ranks: you return {len(given)} numbers; pad x with zeros to a "
            f"multiple of {ranks}, so that none is left out.",
            f"长度 {length}、{ranks} 个 rank：你返回了 {len(given)} 个数；先用零把 x 补齐到 {ranks} 的倍数，"
            "一个数也不能漏。",
        )
    if len(given) > length:
        return Feedback(
            f"length {length} on {ranks} ranks: you return {len(given)} numbers; cut the padding off.",
            f"长度 {length}、{ranks} 个 rank：你返回了 {len(given)} 个数；要把补齐的部分去掉。",
        )
    if _close(given, mean):
        return None
    first = f"{given[0]:.6g}"
    if _close(given, [m / ranks for m in mean]):
        return Feedback(
            f"the first number is {first}, which is 1/{ranks} of the mean {mean[0]:.6g}: you divide by "
            f"{ranks} twice.",
            f"第一个数是 {first}，只有平均值 {mean[0]:.6g} 的 1/{ranks}：多除了一次 {ranks}。",
        )
    if _close(given, [m * ranks for m in mean]):
        return Feedback(
            f"the first number is {first}, the sum over the ranks; their mean is {mean[0]:.6g}: "
            f"divide by {ranks}, once.",
            f"第一个数是 {first}，这是各个 rank 之和；平均值是 {mean[0]:.6g}：还要除以 {ranks}，只除一次。",
        )
    place = next(i for i, (g, m) in enumerate(zip(given, mean, strict=True)) if not _close([g], [m]))
    return Feedback(
        f"length {length}, rank {rank}: your number at index {place} is {given[place]:.6g}, "
        f"the mean there is {mean[place]:.6g}.",
        f"长度 {length}、rank {rank}：下标 {place} 处，你给出的是 {given[place]:.6g}，"
        f"平均值应当是 {mean[place]:.6g}。",
    )


def _close(values: Sequence[float], wanted: Sequence[float]) -> bool:
    return all(math.isclose(v, w, rel_tol=1e-5) for v, w in zip(values, wanted, strict=True))


@dataclass(frozen=True)
class Report:
    """One rank's loss before and after the answer ran, and what the answer printed."""

    loss: float
    loss_after: float
    printed: str

    def prints(self, number: float) -> bool:
        return any(abs(float(found) - number) < 0.006 for found in _NUMBER.findall(self.printed))


def try_report(fn: Callable, losses: Sequence[float]) -> Report:
    """No collective here: a rank that leaves one out must not find it in the trial."""
    before = losses[dist.get_rank()]
    loss, printed = torch.tensor(before), io.StringIO()
    with redirect_stdout(printed):
        fn(loss)
    return Report(before, loss.item(), printed.getvalue().strip())


def judge_reports(results: Sequence[Sequence[Report]]) -> Feedback | None:
    for ranks in results:
        if diagnosis := _diagnose_reports(ranks):
            return diagnosis
    return None


def _diagnose_reports(ranks: Sequence[Report]) -> Feedback | None:
    first, total = ranks[0], sum(report.loss for report in ranks)
    mean, text = total / len(ranks), repr(first.printed[:80])
    for rank, report in enumerate(ranks[1:], start=1):
        if report.printed:
            line = repr(report.printed[:80])
            return Feedback(
                f"rank {rank} prints {line}: let only rank 0 print.",
                f"rank {rank} 也打印了 {line}：只让 rank 0 打印。",
            )
    if not first.printed:
        return Feedback(
            f"no rank prints anything: let rank 0 print the mean loss, here {mean:.4f}.",
            f"没有一个 rank 打印任何内容：应当由 rank 0 打印平均损失，这里是 {mean:.4f}。",
        )
    if not first.prints(mean):
        if first.prints(first.loss):
            why = Feedback("that is its own loss", "那只是它自己的损失")
        elif first.prints(total):
            why = Feedback(f"that is the sum of {len(ranks)} losses", f"那是 {len(ranks)} 个损失之和")
        else:
            why = Feedback("that is not the mean", "那不是平均值")
        return Feedback(
            f"rank 0 prints {text}: {why.en}; the mean over {len(ranks)} ranks is {mean:.4f}.",
            f"rank 0 打印的是 {text}：{why.zh}；{len(ranks)} 个 rank 的平均损失是 {mean:.4f}。",
        )
    for rank, report in enumerate(ranks):
        if not math.isclose(report.loss, report.loss_after, rel_tol=1e-6):
            return Feedback(
                f"the mean is right, but on rank {rank} `loss` was {report.loss:g} and is now "
                f"{report.loss_after:g}: reduce a copy, `loss.clone()`.",
                f"平均值对了，但 rank {rank} 上的 `loss` 原来是 {report.loss:g}，现在成了 "
                f"{report.loss_after:g}：请先 `loss.clone()`，再对副本归约。",
            )
    return None


EXERCISES = {
    "collectives-1": Exercise(
        cases=(8, 10, 3),
        trial=try_mean,
        judge=judge_means,
        nprocs=4,
        hint=Feedback(
            "look at reduce_scatter in the figure: rank r needs a list with one piece for each rank, all "
            "equally long, and is left with the sum of piece r. all_gather then brings the sums to everyone. "
            "How long must x be so that it can be cut into equal pieces?",
            "看图中的 reduce_scatter：每个 rank 交出一个列表，给每个 rank 一段，各段一样长；rank r 拿到的是"
            "第 r 段之和。再用 all_gather 把这些和发给大家。x 要多长，才能切成一样长的几段？",
        ),
        solution=mean_over_ranks,
    ),
    "collectives-2": Exercise(
        cases=((0.5, 1.5, 3.25), (2.5, 0.25, 1.0)),
        trial=try_report,
        judge=judge_reports,
        nprocs=3,
        hint=Feedback(
            "two things must not be mixed up: every rank takes part in the sum, one rank prints it. "
            "Which of your lines belongs under `if dist.get_rank() == 0:`?",
            "有两件事不能混在一起：求和要所有 rank 参加，打印只要一个 rank。哪几行该放进 "
            "`if dist.get_rank() == 0:` 里面？",
        ),
        solution=print_mean_loss,
    ),
}
