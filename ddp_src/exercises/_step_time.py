"""Chapter 01's second exercise: how long a step takes when several ranks divide its batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ddp_src.exercises._exercise import Feedback, number


def step_time(data: float, forward: float, backward: float, update: float, ranks: int) -> float:
    """The time of a step whose batch `ranks` ranks divide among them, if communication costs nothing."""
    return (data + forward + backward) / ranks + update


@dataclass(frozen=True)
class Timed:
    """One step: the ms of its four phases on one process, the number of ranks, and the answer in ms."""

    phases: tuple[float, float, float, float]
    ranks: int
    given: float

    def is_close(self, ms: float) -> bool:
        return math.isclose(self.given, ms, rel_tol=1e-4)


def try_step_time(fn: Callable, case: tuple[float, float, float, float, int]) -> Timed:
    return Timed(case[:4], case[4], number(fn(*case)))


def judge_step_times(results: Sequence[Sequence[Timed]]) -> Feedback | None:
    for timed in (timed for ranks in results for timed in ranks):
        if not timed.is_close(step_time(*timed.phases, timed.ranks)):
            return _diagnose_time(timed)
    return None


def _diagnose_time(timed: Timed) -> Feedback:
    data, forward, backward, update = timed.phases
    ranks, given = timed.ranks, f"{timed.given:.3g}"
    if timed.is_close(sum(timed.phases) / ranks):
        return Feedback(
            f"on {ranks} ranks you give {given} ms, {update / ranks:.3g} of them for the update: that takes "
            f"{update:.3g} ms however small the batch, and every rank does all of it.",
            f"{ranks} 个 rank 时你给出 {given} 毫秒，其中更新占 {update / ranks:.3g} 毫秒：不管 batch 多小，"
            f"更新都要 {update:.3g} 毫秒，而且每个 rank 都要完整地做一遍。",
        )
    if timed.is_close(data + (forward + backward) / ranks + update):
        return Feedback(
            f"on {ranks} ranks you give {given} ms, {data:.3g} of them for the data: each rank reads only "
            "its own part of the batch.",
            f"{ranks} 个 rank 时你给出 {given} 毫秒，其中取数据占 {data:.3g} 毫秒：每个 rank 只读自己那份。",
        )
    times, wanted = " + ".join(f"{ms:g}" for ms in timed.phases), step_time(*timed.phases, ranks)
    return Feedback(
        f"for a step of {times} ms you give {given} ms on {ranks} ranks, but it takes {wanted:.3g} ms.",
        f"一步是 {times} 毫秒，分给 {ranks} 个 rank，你给出 {given} 毫秒，应为 {wanted:.3g} 毫秒。",
    )
