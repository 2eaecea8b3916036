"""An all-reduce written out in messages between neighbours."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def ring_all_reduce(x: Tensor, direction: int = 1) -> list[Tensor]:
    """Sum `x` over all N ranks, in place, in 2(N−1) steps; returns copies of x, first and after each step.

    In each step a rank sends one of N chunks to the next rank and receives one from the rank before it.
    `direction` is 1 where the next rank is the higher one, −1 where it is the lower.
    """
    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = x.tensor_split(n)  # views: a change in a chunk is a change in x
    copies = [x.clone()]
    for step in range(2 * (n - 1)):
        outgoing = chunks[(rank - direction * (step + 1)) % n]
        incoming = chunks[(rank - direction * (step + 2)) % n]
        received = torch.empty_like(incoming)
        sending = dist.isend(outgoing, dst=(rank + direction) % n)  # does not wait
        dist.recv(received, src=(rank - direction) % n)  # waits
        sending.wait()  # until here `outgoing` had to stay as it was
        if step < n - 1:
            incoming += received  # first half: partial sums travel and grow
        else:
            incoming.copy_(received)  # second half: finished sums travel
        copies.append(x.clone())
    return copies
