"""The parent's side of a launch: wait for the ranks, find the first cause, and see where the others stand."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from ddp_src._ending import LEAVE_GRACE, await_end, how_it_ended, last_words
from ddp_src._memory import oom_kills, peak_mb
from ddp_src._output import Output
from ddp_src._rank import Orders
from ddp_src._reports import Failure, Standing
from ddp_src._stacks import collect_stacks, is_stopped

TICK = 0.05  # seconds between two looks at what the ranks printed
SAMPLE = 0.5  # seconds between two looks at their memory
SETTLE = 0.1  # an earlier failure may still be on its way
CAUSE_GRACE = 2.0  # a rank lost its peer: the rank that died is reported within this
ANSWER_GRACE = 1.0


@dataclass(frozen=True)
class Outcome:
    """What came of a launch: `failure` is the first cause; all ranks returned where it is None."""

    failure: Failure | None = None
    stuck: bool = False
    out_of_time: bool = False
    standings: tuple[Standing, ...] = ()


class Watch:
    """Follows the ranks of one launch from their start to their end."""

    def __init__(
        self,
        processes: Sequence[BaseProcess],
        channels: Sequence[Connection],
        orders: Orders,
        output: Output,
    ) -> None:
        self._processes = processes
        self._channels = channels
        self._orders = orders
        self._output = output
        self._states = ["starting"] * len(processes)
        self._failures: list[Failure] = []
        self._noticed = 0.0  # when the first failure came in
        self._peaks: list[float | None] = [None] * len(processes)
        self._sampled = 0.0
        self._oom_kills = oom_kills()

    def follow(self, time_limit: float | None) -> Outcome:
        """Wait until every rank has returned, one has failed, or `time_limit` seconds are over."""
        deadline = time.monotonic() + time_limit if time_limit else float("inf")
        while True:
            self._wait_for_news()
            self._output.pump()
            if self._cause_is_known():
                first = self._first()
                return Outcome(failure=first, stuck=first.is_timeout, standings=self._standings())
            if all(state == "returned" for state in self._states):
                self._release()
                return Outcome()
            if time.monotonic() > deadline:
                return Outcome(out_of_time=True, standings=self._standings())

    def _wait_for_news(self) -> None:
        running = [rank for rank, state in enumerate(self._states) if state != "failed"]
        handles = [self._channels[r] for r in running] + [self._processes[r].sentinel for r in running]
        ready = set(wait(handles, timeout=TICK))
        self._sample_memory(running)
        for rank in running:
            # The sentinel alone would not do: a process that the rank has forked holds it open.
            ended = self._processes[rank].exitcode is not None
            if ended or self._channels[rank] in ready:
                self._hear(rank, ended=ended)
        if all(state == "ready" for state in self._states):
            self._start_all()

    def _sample_memory(self, ranks: Sequence[int]) -> None:
        if time.monotonic() < self._sampled + SAMPLE:
            return
        self._sampled = time.monotonic()
        for rank in ranks:
            self._peaks[rank] = peak_mb(self._processes[rank].pid) or self._peaks[rank]

    def _hear(self, rank: int, *, ended: bool) -> None:
        """Read what a rank sent; a rank that ended without a word is a failure too."""
        try:
            while self._channels[rank].poll():
                message = self._channels[rank].recv()
                if isinstance(message, Failure):
                    self._note(message)
                else:
                    self._states[rank] = message
        except (EOFError, OSError):
            ended = True
        if ended and self._states[rank] != "failed":
            await_end([self._processes[rank]], CAUSE_GRACE)
            self._note(self._without_a_word(rank))

    def _note(self, failure: Failure) -> None:
        self._failures.append(failure)
        self._states[failure.rank] = "failed"
        self._noticed = self._noticed or time.monotonic()

    def _start_all(self) -> None:
        for rank, channel in enumerate(self._channels):
            self._states[rank] = "running"
            try:
                channel.send("go")
            except OSError:
                self._hear(rank, ended=True)

    def _without_a_word(self, rank: int) -> Failure:
        failure = Failure(
            rank=rank,
            error_type=how_it_ended(self._processes[rank].exitcode),
            message=last_words(self._orders.log(rank)),
            at=time.monotonic(),
        )
        if failure.error_type != "ended by SIGKILL":
            return failure
        now = oom_kills()
        known = now is not None and self._oom_kills is not None
        return replace(failure, peak_mb=self._peaks[rank], oom_kills=now - self._oom_kills if known else None)

    def _first(self) -> Failure:
        # A barrier that gave up counts as both: it comes before those that have only lost their peer.
        return min(self._failures, key=lambda f: (f.is_peer_gone, f.is_peer_gone != f.is_timeout, f.at))

    def _cause_is_known(self) -> bool:
        if not self._failures:
            return False
        waited = time.monotonic() - self._noticed
        all_known = all(state in ("failed", "returned") for state in self._states)
        return all_known or waited > (CAUSE_GRACE if self._first().is_peer_gone else SETTLE)

    def _standings(self) -> tuple[Standing, ...]:
        living = {
            rank: self._processes[rank].pid
            for rank, state in enumerate(self._states)
            if state in ("starting", "ready", "running")
        }
        stacks = collect_stacks(living, {rank: self._orders.stack(rank) for rank in living})
        failures = {failure.rank: failure for failure in self._failures}
        standings = []
        for rank, state in enumerate(self._states):
            frames, collective = stacks.get(rank, ()), ""
            if rank in failures:
                frames, collective = failures[rank].frames, failures[rank].collective
                state = "peer gone" if failures[rank].is_peer_gone else state
            elif state == "returned":
                collective = self._last_collective(rank)
            elif is_stopped(living[rank]):
                state = "stopped"
            standings.append(Standing(rank, state, frames, collective))
        return tuple(standings)

    def _last_collective(self, rank: int) -> str:
        """Ask a rank that has returned, and waits for the others, which collective it called last."""
        channel = self._channels[rank]
        with contextlib.suppress(EOFError, OSError):
            channel.send("where")
            if channel.poll(ANSWER_GRACE):
                return channel.recv()
        return ""

    def _release(self) -> None:
        """All have returned: let them leave the group together and wait for their end."""
        for channel in self._channels:
            with contextlib.suppress(OSError):  # it ended by itself, after it had returned
                channel.send("leave")
        await_end(self._processes, LEAVE_GRACE)
