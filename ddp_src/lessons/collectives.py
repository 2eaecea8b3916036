"""Chapter 03: what each collective leaves on each rank, sums in two orders, and calls that do not match."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from ddp_src.ring import ring_all_reduce


@dataclass(frozen=True)
class Held:
    """The numbers on one rank before and after a collective; empty where the rank takes or gets none."""

    before: list[int]
    after: list[int]


@dataclass(frozen=True)
class Waited:
    """When one rank came to a collective and when it went on, in seconds of the machine's clock."""

    came: float
    left: float


def every_collective(rank: int) -> dict[str, Held | Waited | FinePrint]:
    """Each once, and the fine print; rank r holds powers of ten: a sum's digits tell whose numbers it has."""
    x = torch.tensor([10**rank])
    return {
        **in_place(rank),
        **from_lists(rank),
        "barrier": come_late(rank, dist.barrier),
        "all_reduce without barrier": come_late(rank, lambda: dist.all_reduce(x)),
        "fine print": fine_print(rank),
    }


def in_place(rank: int) -> dict[str, Held]:
    """Four that take one tensor: 1 on rank 0, 10 on rank 1, 100 on rank 2."""
    own = torch.tensor([10**rank])
    held = {}

    x = own.clone()
    if rank == 0:
        dist.send(x, dst=2)
    elif rank == 2:
        dist.recv(x, src=0)
    held["send / recv"] = Held(numbers(own), numbers(x))

    x = own.clone()
    dist.broadcast(x, src=0)
    held["broadcast"] = Held(numbers(own), numbers(x))

    x = own.clone()
    dist.reduce(x, dst=0)
    held["reduce"] = Held(numbers(own), numbers(x))

    x = own.clone()
    dist.all_reduce(x)
    held["all_reduce"] = Held(numbers(own), numbers(x))
    return held


def from_lists(rank: int) -> dict[str, Held]:
    """Five that take or give a list with one tensor for each rank."""
    world_size = dist.get_world_size()
    own = torch.tensor([10**rank])
    parts = [own * (i + 1) for i in range(world_size)]  # on rank 1: 10, 20, 30
    one = torch.zeros_like(own)
    several = [torch.zeros_like(own) for _ in range(world_size)]
    held = {}

    dist.scatter(one, parts if rank == 0 else None, src=0)
    held["scatter"] = Held(numbers(parts) if rank == 0 else [], numbers(one))

    dist.gather(own, several if rank == 0 else None, dst=0)
    held["gather"] = Held(numbers(own), numbers(several) if rank == 0 else [])

    dist.all_gather(several, own)
    held["all_gather"] = Held(numbers(own), numbers(several))

    dist.reduce_scatter(one, parts)
    held["reduce_scatter"] = Held(numbers(parts), numbers(one))

    dist.all_to_all(several, parts)
    held["all_to_all"] = Held(numbers(parts), numbers(several))
    return held


def numbers(tensors: Iterable[Tensor]) -> list[int]:
    return [int(tensor) for tensor in tensors]


def come_late(rank: int, collective: Callable[[], object]) -> Waited:
    """Rank 0 comes first, each of the others 40 ms after the one before."""
    dist.barrier()  # the delays begin at the same moment
    time.sleep(0.04 * rank)
    came = time.monotonic()
    collective()
    return Waited(came, time.monotonic())


@dataclass(frozen=True)
class Sums:
    """One rank's numbers, and their sums over all ranks in three ways."""

    own: Tensor
    torchs: Tensor  # dist.all_reduce
    ring: Tensor  # to the next higher rank
    turned: Tensor  # to the next lower rank


def sum_three_ways(own: Tensor) -> Sums:
    torchs, ring, turned = own.clone(), own.clone(), own.clone()
    dist.all_reduce(torchs)
    ring_all_reduce(ring)
    ring_all_reduce(turned, direction=-1)
    return Sums(own, torchs, ring, turned)


@dataclass(frozen=True)
class Rings:
    """One rank's numbers in the ring after each step, and sums of 4,096 numbers, all of them float32."""

    steps: list[list[int]]  # one number per chunk
    total: list[int]  # what all_reduce makes of the first of `steps`
    whole: Sums  # of whole numbers
    random: Sums


def ring_and_torch(rank: int) -> Rings:
    x = torch.tensor([10**rank] * dist.get_world_size())
    total = x.clone()
    dist.all_reduce(total)
    steps = [numbers(copy) for copy in ring_all_reduce(x)]
    seeded = torch.Generator().manual_seed(rank)
    whole = torch.randint(-1000, 1000, (4096,), generator=seeded).float()
    random = torch.randn(4096, generator=seeded)
    return Rings(steps, numbers(total), sum_three_ways(whole), sum_three_ways(random))


@dataclass(frozen=True)
class FinePrint:
    """What one rank saw in four short experiments."""

    in_sub_group: int
    notes: list[dict]
    gathered_has_gradient: bool
    gradient: float
    returned_after: float  # of the whole time until wait() returned
    before_wait: float
    after_wait: float


def fine_print(rank: int) -> FinePrint:
    return FinePrint(sum_in_sub_group(rank), gather_notes(rank), *gather_with_gradient(rank), *go_on(rank))


def sum_in_sub_group(rank: int) -> int:
    pair = dist.new_group([0, 2])  # every rank makes the group, members or not
    x = torch.tensor([10**rank])
    if rank in (0, 2):
        dist.all_reduce(x, group=pair)
    return x.item()


def gather_notes(rank: int) -> list[dict]:
    notes = [None] * dist.get_world_size()
    dist.all_gather_object(notes, {"rank": rank, "loss": 0.5 + rank})
    return notes


def gather_with_gradient(rank: int) -> tuple[bool, float]:
    x = torch.tensor([10.0**rank], requires_grad=True)
    gathered = [torch.zeros(1) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, x)
    has_gradient = torch.cat(gathered).requires_grad
    gathered[rank] = x  # the rank's own part, which remembers where it came from
    torch.cat(gathered).sum().backward()
    return has_gradient, x.grad.item()


def go_on(rank: int) -> tuple[float, float, float]:
    x = torch.full((2**23,), 10.0**rank)  # 32 MB
    dist.barrier()
    start = time.perf_counter()
    work = dist.all_reduce(x, async_op=True)
    returned = time.perf_counter() - start
    before = x[0].item()  # whatever is there now; compute something else here instead
    work.wait()
    return returned / (time.perf_counter() - start), before, x[0].item()


def log_on_rank_0(rank: int) -> None:
    """The mistake: a collective that only one rank calls."""
    loss = torch.tensor(0.5 + rank)
    if rank == 0:
        dist.all_reduce(loss)
        print(f"mean loss {loss.item() / dist.get_world_size()}")


def call_another(rank: int) -> None:
    """The same mistake with another call in its place."""
    x = torch.tensor([10**rank])
    if rank == 1:
        dist.broadcast(x, src=0)
    else:
        dist.all_reduce(x)


def swap_two_calls(rank: int) -> tuple[int, int]:
    """The same mistake in disguise: every rank sums a and b, but rank 1 in another order."""
    a, b = torch.tensor([10**rank]), torch.tensor([2 * 10**rank])
    for x in (b, a) if rank == 1 else (a, b):
        dist.all_reduce(x)
    return a.item(), b.item()
