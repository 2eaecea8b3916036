"""Exercise ddp_from_scratch-2: gradients sent in buckets, the last one too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from ddp_src.exercises._exercise import Feedback, WrongAnswer
from ddp_src.exercises._flat_sync import first, refuse_unequal


def sync_in_buckets(grads: Iterable[Tensor], cap: int, average: Callable[[list[Tensor]], None]) -> None:
    """Give `average` one bucket after the other, each as soon as it holds `cap` numbers or more."""
    bucket: list[Tensor] = []
    for grad in grads:
        bucket.append(grad)
        if sum(g.numel() for g in bucket) >= cap:
            average(bucket)
            bucket = []
    if bucket:
        average(bucket)


@dataclass(frozen=True)
class Backward:
    """Sizes of the gradients as `backward()` makes them, the last layer's first, and the buckets' cap."""

    sizes: tuple[int, ...]
    cap: int


@dataclass(frozen=True)
class Sent:
    """The gradients in each bucket that one rank sent, by index, and each gradient's first entry then."""

    case: Backward
    buckets: list[list[int]]
    first: list[float]


def try_buckets(fn: Callable, case: Backward) -> Sent:
    numbers = torch.Generator().manual_seed(dist.get_rank())
    grads = [torch.randn(size, generator=numbers) for size in case.sizes]
    index = {id(grad): i for i, grad in enumerate(grads)}
    buckets: list[list[int]] = []

    def average(bucket: list[Tensor]) -> None:
        bucket = list(bucket)
        if not bucket or not all(id(grad) in index for grad in bucket):
            raise _not_a_bucket(bucket, len(buckets))
        flat = torch.cat(bucket)
        refuse_unequal(flat.numel())
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for grad, piece in zip(bucket, flat.split([g.numel() for g in bucket]), strict=True):
            grad.copy_(piece)
        buckets.append([index[id(grad)] for grad in bucket])

    fn(iter(grads), case.cap, average)
    return Sent(case, buckets, [first(grad) for grad in grads])


def _not_a_bucket(bucket: list, number: int) -> WrongAnswer:
    if not bucket:
        return WrongAnswer(
            f"bucket {number} is empty when you send it, after {number} full ones: if backward ends just "
            "as a bucket is full, nothing is left to send.",
            f"第 {number} 号桶发送时是空的，前面的 {number} 个桶都满了：反向传播结束时桶恰好装满，"
            "就没有剩下的要发了。",
        )
    kinds = ", ".join(sorted({type(item).__name__ for item in bucket}))
    return WrongAnswer(
        f"not everything in bucket {number} ({kinds}) is a gradient from `grads`: pass `average` a list of "
        "those gradients themselves.",
        f"第 {number} 号桶里的东西（{kinds}）不全是 `grads` 给出的梯度："
        "请把那些梯度本身列成列表交给 `average`。",
    )


def judge_buckets(results: Sequence[Sequence[Sent]]) -> Feedback | None:
    for ranks in results:
        if found := _wrong_buckets(ranks):
            return found
    return None


def _wrong_buckets(ranks: Sequence[Sent]) -> Feedback | None:
    case, buckets = ranks[0].case, ranks[0].buckets
    times = [sum(bucket.count(i) for bucket in buckets) for i in range(len(case.sizes))]
    if 0 in times:
        last = max(i for i, n in enumerate(times) if n == 0)
        layer = (
            ("the first layer's gradient", "第一层的梯度")
            if last == len(times) - 1
            else (f"gradient {last}", f"第 {last} 号梯度")
        )
        a, b = (rank.first[last] for rank in ranks[:2])
        return Feedback(
            f"{layer[0]}, {case.sizes[last]:,} numbers, was never sent: it starts with {a:.3g} on rank 0 "
            f"and {b:.3g} on rank 1. With cap {case.cap:,}, what is left when backward ends must leave too.",
            f"{layer[1]}（{case.sizes[last]:,} 个数）从没发送过：它在 rank 0 上以 {a:.3g} 开头，在 rank 1 上"
            f"以 {b:.3g} 开头。上限是 {case.cap:,}，反向传播结束时剩下的也要发出去。",
        )
    if max(times) > 1:
        twice = times.index(max(times))
        return Feedback(
            f"gradient {twice}, {case.sizes[twice]:,} numbers, was sent {max(times)} times: start a new, "
            "empty bucket after each that you send.",
            f"第 {twice} 号梯度（{case.sizes[twice]:,} 个数）发送了 {max(times)} 次："
            "每发出一个桶，就换一个新的空桶。",
        )
    for number, (bucket, wanted) in enumerate(zip(buckets, _full_buckets(case), strict=False)):
        if bucket != wanted:
            got, right = (sum(case.sizes[i] for i in one) for one in (bucket, wanted))
            return Feedback(
                f"with cap {case.cap:,}, bucket {number} holds {got:,} numbers, gradients {bucket}; it "
                f"should hold {right:,}, gradients {wanted}: send it as soon as it has {case.cap:,} or more.",
                f"上限是 {case.cap:,} 时，第 {number} 号桶装了 {got:,} 个数（梯度 {bucket}），"
                f"应该装 {right:,} 个（梯度 {wanted}）：一达到 {case.cap:,} 个或更多就发送。",
            )
    return None


def _full_buckets(case: Backward) -> list[list[int]]:
    buckets: list[list[int]] = [[]]
    for index in range(len(case.sizes)):
        if sum(case.sizes[i] for i in buckets[-1]) >= case.cap:
            buckets.append([])
        buckets[-1].append(index)
    return buckets
