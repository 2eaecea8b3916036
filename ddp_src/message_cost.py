"""What a message costs: all-reduces of many sizes timed, and the line α + S/β through the times."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from statistics import median

import torch
import torch.distributed as dist

from ddp_src.distributed import place_of_this_rank


def all_reduce_times(rank: int, sizes: Sequence[int], rounds: int = 12) -> list[float]:
    """The median time in seconds of one all_reduce, for each of `sizes` in bytes.

    Each round times every size once, so that a moment in which the machine is busy spoils no size alone.
    """
    device = place_of_this_rank().device
    tensors = {size: torch.zeros(size // 4, device=device) for size in sizes}
    seconds = {size: [] for size in sizes}
    for _ in range(rounds):
        for size in sorted(sizes, reverse=True):  # right after a huge message, a small one would be slower
            x = tensors[size]
            dist.barrier()  # so that waiting for a late rank is not measured
            start = time.perf_counter()
            dist.all_reduce(x)
            if device.type == "cuda":
                torch.cuda.synchronize()
            seconds[size].append(time.perf_counter() - start)
    return [median(seconds[size]) for size in sizes]


def fit_line(sizes: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """α in seconds and β in bytes per second, so that α + size / β comes near to `seconds`.

    Tries the line through each two of the points and keeps the one from which the others are fewest
    percent away: a single time that a busy machine spoilt cannot pull it. Raises ValueError if no two
    points give a time that grows with the size.
    """
    best = (math.inf, 0.0, 0.0)
    for (s, t), (larger, longer) in itertools.combinations(zip(sizes, seconds, strict=True), 2):
        slope = (longer - t) / (larger - s)
        alpha = t - slope * s
        if slope > 0 and alpha > 0:
            away = sum(abs(math.log(e)) for e in ratios(sizes, seconds, alpha, 1 / slope))
            best = min(best, (away, alpha, 1 / slope))
    if best[0] == math.inf:
        raise ValueError("no line fits: between no two sizes does the time grow from above 0")
    return best[1:]


def ratios(sizes: Sequence[int], seconds: Sequence[float], alpha: float, beta: float) -> list[float]:
    """Fitted over measured time, for each size."""
    return [(alpha + size / beta) / t for size, t in zip(sizes, seconds, strict=True)]
