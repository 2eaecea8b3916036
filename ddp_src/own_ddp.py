"""DDP written by hand, in five versions; each class holds only what is new against the one that it extends.

All are used alike: wrap the model on every rank, then in each step call `model.zero_grad()`,
`loss.backward()`, `model.sync()` and `optimizer.step()`, one `backward()` for each `sync()`.
All parameters of the model have one dtype and one device. A parameter that got no gradient on any rank has
one of zeros after `sync()`, where one process has None: an optimizer with weight decay tells the two apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn


class NoSync(nn.Module):
    """Version 0: equal weights at the start, and from there every rank trains alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.module = model
        self.trained = [p for p in model.parameters() if p.requires_grad]
        self.start_equal()

    def start_equal(self) -> None:
        """Every rank takes rank 0's weights and buffers, whatever its own seed was."""
        for tensor in (*self.module.parameters(), *self.module.buffers()):
            dist.broadcast(tensor.detach(), src=0)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.module(*inputs)

    def sync(self) -> None:
        """Between `backward()` and the optimizer's step: here, nothing."""


class Naive(NoSync):
    """Version 1: one all-reduce for each parameter, one after the other."""

    def sync(self) -> None:
        for p in self.trained:
            if p.grad is None:  # to skip the call here would leave the other ranks waiting in it
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()


class Flat(NoSync):
    """Version 2: all gradients lie in one buffer, so that one all-reduce is enough."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.buffer = lay_out(self.trained)

    def zero_grad(self, set_to_none: bool = False) -> None:
        self.buffer.zero_()  # never None: the next gradient would lie outside the buffer

    def sync(self) -> None:
        dist.all_reduce(self.buffer)
        self.buffer /= dist.get_world_size()


def lay_out(params: list[nn.Parameter]) -> Tensor:
    """A buffer of zeros in which each parameter's `grad` is a view: `backward()` then writes into it."""
    sizes = [p.numel() for p in params]
    buffer = torch.zeros(sum(sizes), dtype=params[0].dtype, device=params[0].device)
    for p, piece in zip(params, buffer.split(sizes), strict=True):
        p.grad = piece.view_as(p)
    return buffer


class Bucketed(NoSync):
    """Version 3: several buffers of about `cap` bytes, filled from the last layer back like `backward()`."""

    def __init__(self, model: nn.Module, cap: int = 2**20) -> None:
        super().__init__(model)
        self.groups = group(reversed(self.trained), cap)
        self.buckets = [lay_out(params) for params in self.groups]

    def zero_grad(self, set_to_none: bool = False) -> None:
        for bucket in self.buckets:
            bucket.zero_()

    def sync(self) -> None:
        works = [dist.all_reduce(bucket, async_op=True) for bucket in self.buckets]
        for work, bucket in zip(works, self.buckets, strict=True):
            work.wait()
            bucket /= dist.get_world_size()


def group(params: Iterable[nn.Parameter], cap: int) -> list[list[nn.Parameter]]:
    """Split `params`, in their order, into groups; a group is closed once it has `cap` bytes or more."""
    groups, size = [], cap
    for p in params:
        if size >= cap:
            groups.append([])
            size = 0
        groups[-1].append(p)
        size += p.numel() * p.element_size()
    return groups


class Overlapped(Bucketed):
    """Version 4: a bucket leaves as soon as its last gradient is there, while `backward()` goes on."""

    def __init__(self, model: nn.Module, cap: int = 2**20) -> None:
        super().__init__(model, cap)
        for number, params in enumerate(self.groups):
            for p in params:
                p.register_post_accumulate_grad_hook(partial(self.mark_ready, number))
        self.start_over()

    def start_over(self) -> None:
        self.missing = [len(params) for params in self.groups]  # gradients that each bucket waits for
        self.works: list[dist.Work] = []

    def mark_ready(self, number: int, p: nn.Parameter) -> None:
        """Runs inside `backward()`, when the gradient of `p`, of bucket `number`, has been written."""
        if self.missing[number] == 0:  # this gradient was added to a bucket that may be on its way
            raise RuntimeError("a second backward() before sync(): call sync() after each backward()")
        self.missing[number] -= 1
        while len(self.works) < len(self.buckets) and self.missing[len(self.works)] == 0:
            self.launch_next()

    def launch_next(self) -> None:
        """In the order of the buckets, never of readiness: all ranks must make the same calls."""
        self.works.append(dist.all_reduce(self.buckets[len(self.works)], async_op=True))

    def sync(self) -> None:
        while len(self.works) < len(self.buckets):  # buckets with a parameter that got no gradient
            self.launch_next()
        for work, bucket in zip(self.works, self.buckets, strict=True):
            work.wait()
            bucket /= dist.get_world_size()
        self.start_over()


VERSIONS = {"no sync": NoSync, "naive": Naive, "flat": Flat, "bucketed": Bucketed, "overlapped": Overlapped}
