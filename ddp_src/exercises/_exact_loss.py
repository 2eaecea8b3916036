"""Chapter 04's second exercise: a test loss that is the same number on any number of ranks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from ddp_src.exercises._exercise import Feedback, WrongAnswer, number


def exact_loss(mean_loss: Callable[[Iterable[int]], float], n: int) -> float:
    """The mean loss over samples 0 … n - 1, each tested once, on one rank."""
    mine = range(dist.get_rank(), n, dist.get_world_size())
    total = torch.tensor([mean_loss(mine) * len(mine), len(mine)])  # a mean times its count is a sum
    dist.all_reduce(total)
    loss, tested = total.tolist()
    return loss / tested


@dataclass(frozen=True)
class Tested:
    """What one rank's `exact_loss` tested and gave for `n` samples."""

    n: int
    numbers: list[int]
    given: float

    @property
    def loss(self) -> float:
        """Added up over `numbers`."""
        return sum(map(_loss, self.numbers))


def _loss(sample: int) -> float:
    return 0.5 if sample % 4 else 2.0  # so that even and odd samples differ


def try_loss(fn: Callable, n: int) -> Tested:
    numbers: list[int] = []

    def mean_loss(samples: Iterable[int]) -> float:
        batch = _sample_numbers(samples, n)
        numbers.extend(batch)
        return sum(map(_loss, batch)) / len(batch) if batch else math.nan  # as torch's mean of nothing

    return Tested(n, numbers, number(fn(mean_loss, n)))


def _sample_numbers(samples: object, n: int) -> list[int]:
    try:
        batch = [int(sample) for sample in samples]
    except TypeError:
        raise WrongAnswer(
            f"mean_loss takes a list of sample numbers; you gave it {samples!r}.",
            f"mean_loss 要的是一个列表，里面是样本的编号；你给它的是 {samples!r}。",
        ) from None
    if foreign := [sample for sample in batch if not 0 <= sample < n]:
        raise WrongAnswer(
            f"you test sample {foreign[0]}, but {n} samples have the numbers 0 to {n - 1}.",
            f"你测试了样本 {foreign[0]}，可是 {n} 个样本的编号是 0 到 {n - 1}。",
        )
    return batch


def judge_losses(results: Sequence[Sequence[Tested]]) -> Feedback | None:
    for ranks in results:
        if wrong := _wrong_count(ranks) or _wrong_value(ranks):
            return wrong
    return None


def _wrong_count(ranks: Sequence[Tested]) -> Feedback | None:
    n, world = ranks[0].n, len(ranks)
    counts = Counter(number for rank in ranks for number in rank.numbers)
    counted = counts.total()
    if missing := [number for number in range(n) if number not in counts]:
        return Feedback(
            f"{n} samples on {world} ranks: you tested {len(counts)} of them; sample {missing[-1]} was "
            "tested on no rank.",
            f"{n} 个样本、{world} 个 rank：你只测试了其中 {len(counts)} 个；样本 {missing[-1]} 没有任何 rank "
            "测试过。",
        )
    if counted == n:
        return None
    twice = next(number for number in counts if counts[number] > 1)
    owners = [rank for rank, tested in enumerate(ranks) if twice in tested.numbers]
    if counted == n * world and len(owners) == world:
        return Feedback(
            f"{n} samples on {world} ranks: each rank tested all {n}; share the work out, so that each "
            "sample is tested on one rank.",
            f"{n} 个样本、{world} 个 rank：每个 rank 都测试了全部 {n} 个；请分工，"
            "每个样本只由一个 rank 测试。",
        )
    where_en = " and ".join(map(str, owners))
    where_zh = "、".join(f"rank {rank}" for rank in owners)
    return Feedback(
        f"{n} samples on {world} ranks: you counted {counted}; sample {twice} was tested {counts[twice]} "
        f"times (on rank {where_en}).",
        f"{n} 个样本、{world} 个 rank：你数了 {counted} 个；样本 {twice} 被测试了 {counts[twice]} 次"
        f"（在 {where_zh} 上）。",
    )


def _wrong_value(ranks: Sequence[Tested]) -> Feedback | None:
    n, total = ranks[0].n, sum(rank.loss for rank in ranks)
    wrong = [rank for rank in range(len(ranks)) if not _close(ranks[rank].given, total / n)]
    if not wrong:
        return None
    rank, given = wrong[0], ranks[wrong[0]].given
    sizes = [len(tested.numbers) for tested in ranks]
    own = [tested.loss / size if size else math.nan for tested, size in zip(ranks, sizes, strict=True)]
    en, zh = (word.join(f"{loss:.4g}" for loss in own) for word in (" and ", " 和 "))
    sizes_en, sizes_zh = (word.join(map(str, sizes)) for word in (" and ", " 和 "))
    if _close(given, sum(own) / len(own)):
        return Feedback(
            f"you give {given:.4g}, the mean of the ranks' mean losses {en}, but these are of {sizes_en} "
            f"samples; all {n} have {total / n:.4g}: add up first, then divide once.",
            f"你给出 {given:.4g}，它是各 rank 平均损失 {zh} 的平均，可它们的样本数是 {sizes_zh}；"
            f"全部 {n} 个样本的平均损失应为 {total / n:.4g}：先求和，最后只除一次。",
        )
    if _close(given, sum(own) / n):
        return Feedback(
            f"you give {given:.4g}, that is {' + '.join(f'{loss:.4g}' for loss in own)} over {n}, but these "
            f"are means, of {sizes_en} samples: turn each into a sum before you add them up.",
            f"你给出 {given:.4g}，也就是 {' + '.join(f'{loss:.4g}' for loss in own)} 再除以 {n}，可加起来的是"
            f"平均值，分别来自 {sizes_zh} 个样本：先把它们变回总和，再相加。",
        )
    if _close(given, own[rank]):
        return Feedback(
            f"rank {rank} gives {given:.4g}, the mean loss of its own {sizes[rank]} samples; all {n} have "
            f"{total / n:.4g}, and every rank must give that: add up over the ranks.",
            f"rank {rank} 给出 {given:.4g}，那只是它自己 {sizes[rank]} 个样本的平均损失；全部 {n} 个样本的是 "
            f"{total / n:.4g}，每个 rank 都应给出这个数：要在各个 rank 之间求和。",
        )
    return Feedback(
        f"{n} samples: rank {rank} gives {given:.6g}, but their losses add up to {total:g}: {total / n:.6g}.",
        f"{n} 个样本：rank {rank} 给出 {given:.6g}，而它们的损失合计 {total:g}：应为 {total / n:.6g}。",
    )


def _close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-5)  # float32 is good enough
