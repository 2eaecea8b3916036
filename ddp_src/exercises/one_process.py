"""Chapter 01's exercises: the whole batch's gradient from its parts', and the time of a divided step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from ddp_src.exercises._exercise import Exercise, Feedback, WrongAnswer
from ddp_src.exercises._step_time import judge_step_times, step_time, try_step_time


def join(grads: Sequence[Tensor], counts: Sequence[int]) -> Tensor:
    """The gradient of the whole batch's mean loss, from each part's and its number of samples."""
    total = sum(grad * count for grad, count in zip(grads, counts, strict=True))
    return total / sum(counts)


@dataclass(frozen=True)
class Batch:
    """One batch: the learner's gradient, the mean of the parts' gradients, and the whole batch's."""

    counts: tuple[int, ...]
    given: Tensor
    plain_mean: Tensor
    whole: Tensor

    @property
    def off(self) -> float:
        return (self.given - self.whole).abs().max().item()

    @property
    def factor(self) -> float | None:
        """How many times too large the learner's gradient is, if that is all that is wrong with it."""
        factor = (self.given @ self.whole / (self.whole @ self.whole)).item()
        return factor if torch.allclose(self.given, factor * self.whole, rtol=1e-4) else None


def try_batch(fn: Callable, counts: tuple[int, ...]) -> Batch:
    """Each rank computes its part's gradient and gathers the others'; part r has `counts[r]` samples."""
    parts = [_samples(part, count) for part, count in enumerate(counts)]
    rank = dist.get_rank()
    mine = _gradient(*parts[rank]) if rank < len(parts) else None  # some batches have fewer parts than ranks
    gathered: list = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, mine)
    grads = gathered[: len(counts)]
    whole = _gradient(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))
    given = fn([grad.clone() for grad in grads], list(counts))
    return Batch(counts, _vector(given, whole), torch.stack(grads).mean(0), whole)


def judge_batches(results: Sequence[Sequence[Batch]]) -> Feedback | None:
    right: list[Batch] = []
    for ranks in results:
        for batch in ranks:
            if not torch.allclose(batch.given, batch.whole, rtol=1e-4, atol=1e-6):
                return _diagnose_batch(batch, right)
            right.append(batch)
    return None


def _diagnose_batch(batch: Batch, right: Sequence[Batch]) -> Feedback:
    """Name the commonest mistakes by what they do to the gradient, and any other by its worst entry."""
    samples = " + ".join(str(count) for count in batch.counts)
    at = int((batch.given - batch.whole).abs().argmax())
    given, wanted = f"{batch.given[at]:.3g}", f"{batch.whole[at]:.3g}"
    if right and torch.allclose(batch.given, batch.plain_mean, rtol=1e-4):
        return Feedback(
            f"right for equal parts only: with {samples} samples, entry {at} of your gradient is {given}, "
            f"the whole batch's is {wanted}, off by {batch.off:.3g}: weigh each part by its count.",
            f"只有各部分样本数相等时才对：样本数是 {samples} 时，你的梯度的第 {at} 项是 {given}，整个 batch "
            f"的是 {wanted}，差了 {batch.off:.3g}：每个部分要按样本数加权。",
        )
    if (factor := batch.factor) and not math.isclose(factor, 1, rel_tol=1e-3):
        return Feedback(
            f"with {samples} samples, your gradient is {factor:.3g} times the whole batch's (entry {at}: "
            f"{given} instead of {wanted}): its direction is right; what do you divide by?",
            f"样本数是 {samples} 时，你的梯度是整个 batch 的 {factor:.3g} 倍（第 {at} 项是 {given}，应为 "
            f"{wanted}）：方向对了，最后该除以什么？",
        )
    return Feedback(
        f"with {samples} samples, entry {at} of your gradient is {given}, the whole batch's is {wanted}.",
        f"样本数是 {samples} 时，你的梯度的第 {at} 项是 {given}，而整个 batch 的是 {wanted}。",
    )


def _vector(given: object, whole: Tensor) -> Tensor:
    """The answer as a float64 vector of the right shape; raises WrongAnswer otherwise."""
    shape, kind = list(whole.shape), type(given).__name__
    if given is None:
        raise WrongAnswer(
            f"your function returns None where a gradient of shape {shape} is expected: is `return` missing?",
            f"你的函数返回了 None，而这里要的是形状为 {shape} 的梯度：是不是漏写了 `return`？",
        )
    try:
        vector = torch.as_tensor(given).detach().to("cpu", torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise WrongAnswer(
            f"your function returns a {kind} where a gradient, a tensor of shape {shape}, is expected.",
            f"你的函数返回了 {kind} 类型的值，而这里要的是梯度，形状为 {shape} 的张量。",
        ) from None
    if list(vector.shape) == shape:
        return vector
    if vector.dim() == 0:
        raise WrongAnswer(
            f"your function returns one number, {vector:.3g}, where a gradient of shape {shape} is "
            "expected: average over the parts, not over the weights.",
            f"你的函数返回了一个数 {vector:.3g}，而这里要的是形状为 {shape} 的梯度：是在各部分之间求平均，"
            "不是在各个权重之间。",
        )
    raise WrongAnswer(
        f"your function returns a {kind} of shape {list(vector.shape)} where {shape}, the shape of each "
        "part's gradient, is expected.",
        f"你的函数返回了形状为 {list(vector.shape)} 的 {kind}，而这里要的形状是 {shape}，"
        "和各部分的梯度一样。",
    )


def _samples(part: int, count: int) -> tuple[Tensor, Tensor]:
    """`count` samples; those of a later part are larger, so that it matters how much each part counts."""
    generator = torch.Generator().manual_seed(part)
    inputs = (part + 1) * torch.randn(count, 6, generator=generator, dtype=torch.float64)
    return inputs, torch.rand(count, generator=generator, dtype=torch.float64)


def _gradient(inputs: Tensor, targets: Tensor) -> Tensor:
    """Of the mean loss of a linear model with 6 weights, all 0.1."""
    weights = torch.full((6,), 0.1, dtype=torch.float64, requires_grad=True)
    F.mse_loss(inputs @ weights, targets).backward()
    return weights.grad


EXERCISES = {
    "one_process-1": Exercise(
        cases=((4, 4), (4, 1), (2, 2, 2), (3, 2, 1)),
        trial=try_batch,
        judge=judge_batches,
        nprocs=3,
        hint=Feedback(
            "a part's gradient is a mean over its samples: times their number it is a sum over them. Add the "
            "sums of all parts; what must you divide by?",
            "一个部分的梯度是它那些样本的平均，乘以样本数就是总和。把各部分的总和加起来，再除以什么？",
        ),
        solution=join,
    ),
    "one_process-2": Exercise(
        cases=((8.0, 0.5, 0.5, 0.5, 4), (2.0, 3.0, 3.0, 0.5, 2), (0.25, 0.5, 0.75, 0.5, 64)),
        trial=try_step_time,
        judge=judge_step_times,
        hint=Feedback(
            "in the figure of batch sizes 64 to 1,024: which of the four phases became shorter when the "
            "batch became smaller, and which did not?",
            "看 batch 从 64 到 1,024 的那幅图：batch 变小时，四个阶段中哪些变短了，哪个没有变？",
        ),
        solution=step_time,
    ),
}
