"""Exercise ddp_from_scratch-1: the gradients averaged in one flat buffer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddp_src.exercises._exercise import Feedback, WrongAnswer


def sync(params: Sequence[nn.Parameter]) -> None:
    """Average the gradients over all ranks in one all-reduce; on every rank `params` are the same."""
    trained = [p for p in params if p.requires_grad]
    pieces = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
    buffer = torch.cat([piece.flatten() for piece in pieces])
    dist.all_reduce(buffer)
    buffer /= dist.get_world_size()
    for p, piece in zip(trained, buffer.split([p.numel() for p in trained]), strict=True):
        p.grad = piece.view_as(p)


@dataclass(frozen=True)
class Layout:
    """Shapes of a model's parameters; which are frozen, and which get no gradient on rank 1."""

    shapes: tuple[tuple[int, ...], ...]
    frozen: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()


@dataclass(frozen=True)
class Synced:
    """One rank's gradients before (`own`) and after, by parameter, and how much each all-reduce sent."""

    layout: Layout
    own: list[Tensor | None]
    given: list[Tensor | None]
    sent: list[int]


def try_sync(fn: Callable, layout: Layout) -> Synced:
    rank = dist.get_rank()
    numbers = torch.Generator().manual_seed(rank)
    params, own = [], []
    for index, shape in enumerate(layout.shapes):
        param = nn.Parameter(torch.zeros(shape), requires_grad=index not in layout.frozen)
        grad = torch.randn(shape, generator=numbers)
        if param.requires_grad and not (rank == 1 and index in layout.missing):
            param.grad = grad.clone()
        params.append(param)
        own.append(None if param.grad is None else grad)
    with _counted_all_reduce() as sent:
        fn(params)
    return Synced(layout, own, [p.grad if p.grad is None else p.grad.clone() for p in params], sent)


@contextmanager
def _counted_all_reduce() -> Iterator[list[int]]:
    """Note how many numbers each all-reduce sends; unequal buffers are told before they end a process."""
    real, sent = dist.all_reduce, []

    def all_reduce(tensor: Tensor, *args: object, **options: object) -> object:
        if isinstance(tensor, Tensor):
            refuse_unequal(tensor.numel())
            sent.append(tensor.numel())
        return real(tensor, *args, **options)

    dist.all_reduce = all_reduce
    try:
        yield sent
    finally:
        dist.all_reduce = real


def refuse_unequal(size: int) -> None:
    sizes: list[int] = [0] * dist.get_world_size()
    dist.all_gather_object(sizes, size)
    if len(set(sizes)) > 1:
        raise WrongAnswer(
            f"rank 0 sends {sizes[0]:,} numbers, rank 1 {sizes[1]:,}: buffers must have the same layout on "
            "all ranks, so a gradient that is missing on one rank counts as zeros there.",
            f"rank 0 发送 {sizes[0]:,} 个数，rank 1 发送 {sizes[1]:,} 个：所有 rank 的缓冲区布局必须一致，"
            "某个 rank 上缺少的梯度，要在那里当作零。",
        )


def judge_sync(results: Sequence[Sequence[Synced]]) -> Feedback | None:
    for ranks in results:
        for index in range(len(ranks[0].own)):
            for rank in range(len(ranks)):
                if found := _wrong_gradient(ranks, rank, index):
                    return found
        sizes = ranks[0].sent
        if not sizes:
            return Feedback(
                "the gradients are right, but not by way of `dist.all_reduce`, which was called 0 times: "
                "call `dist.all_reduce(...)` once, by this name.",
                "梯度是对的，但 `dist.all_reduce` 的调用次数是 0：请用它求和，只调用一次，"
                "并且就写成 `dist.all_reduce(...)`。",
            )
        if len(sizes) > 1:
            listed = ", ".join(f"{size:,}" for size in sizes)
            return Feedback(
                f"the gradients are right, but it took {len(sizes)} all-reduces, of {listed} numbers: "
                "put all gradients in one buffer, which needs only one.",
                f"梯度是对的，但用了 {len(sizes)} 次 all-reduce，依次发送 {listed} 个数："
                "把所有梯度放进一个缓冲区，一次就够。",
            )
    return None


def _wrong_gradient(ranks: Sequence[Synced], rank: int, index: int) -> Feedback | None:
    one, name = ranks[rank], f"params[{index}].grad"
    given = one.given[index]
    if index in one.layout.frozen:
        if given is None:
            return None
        return Feedback(
            f"params[{index}] is frozen, yet on rank {rank} it now has a gradient of {given.numel():,} "
            "numbers: leave out parameters that do not require a gradient.",
            f"params[{index}] 是冻结的，可它在 rank {rank} 上却有了 {given.numel():,} 个数的梯度："
            "不需要梯度的参数不要放进来。",
        )
    own = [torch.zeros(one.layout.shapes[index]) if r.own[index] is None else r.own[index] for r in ranks]
    mean = sum(own) / len(ranks)
    if given is None:
        return Feedback(
            f"on rank {rank} {name} is still None; the mean over the ranks starts with {first(mean):.3g} "
            "and is needed there too.",
            f"rank {rank} 上的 {name} 仍然是 None；各 rank 的平均值以 {first(mean):.3g} 开头，那里也需要它。",
        )
    if given.shape != mean.shape:
        return Feedback(
            f"on rank {rank} {name} has shape {tuple(given.shape)}, its parameter {tuple(mean.shape)}.",
            f"rank {rank} 上 {name} 的形状是 {tuple(given.shape)}，而参数的形状是 {tuple(mean.shape)}。",
        )
    if torch.allclose(given, mean, atol=1e-5):
        return None
    return _wrong_values(name, rank, given, own, mean)


def _wrong_values(name: str, rank: int, given: Tensor, own: Sequence[Tensor], mean: Tensor) -> Feedback:
    got, wanted = first(given), first(mean)
    if torch.allclose(given, len(own) * mean, atol=1e-5):
        return Feedback(
            f"every entry of {name} is exactly {len(own)}× too large: it starts with {got:.3g}, the mean "
            f"with {wanted:.3g}; divide the sum by the number of ranks.",
            f"{name} 的每个数都恰好是平均值的 {len(own)} 倍：它以 {got:.3g} 开头，平均值以 {wanted:.3g} "
            "开头；求和之后要除以 rank 数。",
        )
    if torch.equal(given, own[rank]):
        return Feedback(
            f"on rank {rank} {name} still holds the rank's own values, {got:.3g} first; the mean starts with "
            f"{wanted:.3g}: average over the ranks, then write the result back.",
            f"rank {rank} 上的 {name} 还是它自己的值，以 {got:.3g} 开头；平均值以 {wanted:.3g} 开头："
            "先在各 rank 之间求平均，再把结果写回去。",
        )
    a, b = first(own[0]), first(own[1])
    return Feedback(
        f"on rank {rank} {name} starts with {got:.3g}, but the mean of {a:.3g} and {b:.3g} is {wanted:.3g}.",
        f"rank {rank} 上的 {name} 以 {got:.3g} 开头，而 {a:.3g} 和 {b:.3g} 的平均值是 {wanted:.3g}。",
    )


def first(tensor: Tensor) -> float:
    """The first entry, by which a gradient is named to the learner."""
    return tensor.flatten()[0].item()
