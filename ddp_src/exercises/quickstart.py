"""Chapter 00's exercise: the mean loss of all ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from ddp_src.exercises._exercise import Exercise, Feedback, number


def global_loss(losses: Sequence[float], counts: Sequence[int]) -> float:
    """The mean loss over all samples, from each rank's mean loss and number of samples."""
    total = sum(loss * count for loss, count in zip(losses, counts, strict=True))
    return total / sum(counts)


@dataclass(frozen=True)
class Step:
    """One step: what the ranks recorded, the learner's answer, and the mean over the samples."""

    losses: list[float]
    counts: list[int]
    given: float
    mean: float

    @property
    def is_right(self) -> bool:
        return math.isclose(self.given, self.mean, rel_tol=1e-5)  # float32 is good enough

    @property
    def is_plain_mean(self) -> bool:
        return math.isclose(self.given, sum(self.losses) / len(self.losses), rel_tol=1e-5)


def try_step(fn: Callable, counts: Sequence[int]) -> Step:
    """One step in which rank r has `counts[r]` samples; ranks beyond the last count have run out of them.

    The samples of a higher rank are harder, so that it matters whose loss counts how much.
    """
    rank = dist.get_rank()
    samples = counts[rank] if rank < len(counts) else 0
    generator = torch.Generator().manual_seed(rank)
    sample_losses = (rank + 1) * torch.rand(samples, generator=generator, dtype=torch.float64)
    records = [None] * dist.get_world_size()
    dist.all_gather_object(records, sample_losses.mean().item())
    total = sample_losses.sum()
    dist.all_reduce(total)
    losses = records[: len(counts)]
    given = number(fn(list(losses), list(counts)))
    return Step(losses, list(counts), given, total.item() / sum(counts))


def judge_steps(results: Sequence[Sequence[Step]]) -> Feedback | None:
    right: list[Step] = []
    for ranks in results:
        for step in ranks:
            if not step.is_right:
                return _diagnose(step, right)
            right.append(step)
    return None


def _diagnose(step: Step, right: Sequence[Step]) -> Feedback:
    """Name the commonest mistakes by what they do to the value, and any other by the value itself."""
    en, zh = _listed(step.counts, "and"), _listed(step.counts, "和")
    losses = [f"{loss:.3g}" for loss in step.losses]
    samples = sum(step.counts)
    if step.is_plain_mean and right:
        good = right[-1].counts
        return Feedback(
            f"right for {_listed(good, 'and')} samples; for {en} you give {step.given:.3g}, "
            f"the samples' mean is {step.mean:.3g}: weigh each loss by its count.",
            f"样本数是 {_listed(good, '和')} 时是对的；样本数是 {zh} 时，你给出 {step.given:.3g}，"
            f"而全部样本的平均损失是 {step.mean:.3g}：每个损失要按样本数加权。",
        )
    if step.given > max(step.losses):
        return Feedback(
            f"for {en} samples you give {step.given:.3g}: your mean is larger than every loss it is "
            f"the mean of ({_listed(losses, 'and')}); divide the sum over all samples by their "
            f"number, {samples}.",
            f"样本数是 {zh} 时，你给出 {step.given:.3g}：这个平均值比参与平均的每一个损失"
            f"（{_listed(losses, '和')}）都大；所有样本的损失之和，应该除以样本总数 {samples}。",
        )
    return Feedback(
        f"for mean losses {_listed(losses, 'and')} of {en} samples you give {step.given:.6g}, "
        f"but the mean over the {samples} samples is {step.mean:.6g}.",
        f"平均损失是 {_listed(losses, '和')}、样本数是 {zh} 时，你给出 {step.given:.6g}，"
        f"而这 {samples} 个样本的平均损失是 {step.mean:.6g}。",
    )


def _listed(values: Sequence[object], last: str) -> str:
    """`1, 2 and 3`, or `1、2 和 3`."""
    comma = ", " if last == "and" else "、"
    *first, final = [str(value) for value in values]
    return f"{comma.join(first)} {last} {final}"


EXERCISES = {
    "quickstart-1": Exercise(
        cases=((128, 128), (128, 16), (128, 128, 128), (128, 64, 16)),
        trial=try_step,
        judge=judge_steps,
        nprocs=3,
        hint=Feedback(
            "a rank's mean loss times its number of samples is the total loss of its samples. "
            "Add these totals up: what must you divide by to get a mean?",
            "每个 rank 的平均损失乘以它的样本数，就是它那些样本的损失之和。把各个 rank 的和加起来，"
            "再除以什么才是平均？",
        ),
        solution=global_loss,
    )
}
