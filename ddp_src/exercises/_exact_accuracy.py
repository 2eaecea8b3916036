"""Chapter 04's second exercise: an accuracy that is the same number on any number of ranks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from ddp_src.exercises._exercise import Feedback, WrongAnswer, number


def exact_accuracy(is_right: Callable[[int], bool], n: int) -> float:
    """The accuracy over samples 0 … n - 1, each tested once, on one rank."""
    mine = range(dist.get_rank(), n, dist.get_world_size())
    total = torch.tensor([sum(is_right(number) for number in mine), len(mine)])
    dist.all_reduce(total)
    right, tested = total.tolist()
    return right / tested


@dataclass(frozen=True)
class Tested:
    """What one rank's `exact_accuracy` tested and gave for `n` samples."""

    n: int
    numbers: list[int]
    right: int  # of `numbers`
    given: float


def _model_is_right(sample: int) -> bool:
    return sample % 4 != 0  # so that even and odd samples differ


def try_accuracy(fn: Callable, n: int) -> Tested:
    numbers: list[int] = []

    def is_right(sample: int) -> bool:
        sample = int(sample)
        if not 0 <= sample < n:
            raise WrongAnswer(
                f"you test sample {sample}, but {n} samples have the numbers 0 to {n - 1}.",
                f"你测试了样本 {sample}，可是 {n} 个样本的编号是 0 到 {n - 1}。",
            )
        numbers.append(sample)
        return _model_is_right(sample)

    given = number(fn(is_right, n))
    return Tested(n, numbers, sum(map(_model_is_right, numbers)), given)


def judge_accuracies(results: Sequence[Sequence[Tested]]) -> Feedback | None:
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
    n, right = ranks[0].n, sum(rank.right for rank in ranks)
    wrong = [rank for rank in range(len(ranks)) if not _close(ranks[rank].given, right / n)]
    if not wrong:
        return None
    rank, given = wrong[0], ranks[wrong[0]].given
    sizes = [len(tested.numbers) for tested in ranks]
    own = [tested.right / size if size else math.nan for tested, size in zip(ranks, sizes, strict=True)]
    truth_en, truth_zh = f"{right} of {n} are right", f"{n} 个里对了 {right} 个"
    if _close(given, sum(own) / len(own)):
        en, zh = " and ".join(f"{a:.4g}" for a in own), " 和 ".join(f"{a:.4g}" for a in own)
        return Feedback(
            f"you give {given:.4g}, the mean of the ranks' accuracies {en}, but these are of "
            f"{' and '.join(map(str, sizes))} samples; {truth_en}, {right / n:.4g}: add up first, then "
            "divide once.",
            f"你给出 {given:.4g}，它是各 rank 准确率 {zh} 的平均，可它们的样本数是 "
            f"{' 和 '.join(map(str, sizes))}；{truth_zh}，应为 {right / n:.4g}：先求和，最后只除一次。",
        )
    if _close(given, own[rank]):
        return Feedback(
            f"rank {rank} gives {given:.4g}, the accuracy of its own {sizes[rank]} samples; {truth_en}, "
            f"{right / n:.4g}, and every rank must give that: add up over the ranks.",
            f"rank {rank} 给出 {given:.4g}，那只是它自己 {sizes[rank]} 个样本的准确率；{truth_zh}，"
            f"每个 rank 都应给出 {right / n:.4g}：要在各个 rank 之间求和。",
        )
    return Feedback(
        f"{n} samples: rank {rank} gives {given:.6g}, but {truth_en}: {right / n:.6g}.",
        f"{n} 个样本：rank {rank} 给出 {given:.6g}，而 {truth_zh}：应为 {right / n:.6g}。",
    )


def _close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-6)  # float32 is good enough
