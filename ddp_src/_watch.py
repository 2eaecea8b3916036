"""The parent's side of a launch: wait for the ranks, find the first cause, and end what is left."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from ddp_src import _rank
from ddp_src._output import Output
from ddp_src._rank import Failure, Frame, Orders

TICK = 0.05  # seconds between two looks at what the ranks printed
SETTLE = 0.1  # an earlier failure may still be on its way
CAUSE_GRACE = 2.0  # a rank lost its peer: the rank that died is reported within this
LEAVE_GRACE = 10.0
STACK_GRACE = 1.0
_ESCAPED = r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))"  # what is not ASCII, in a faulthandler dump


@dataclass(frozen=True)
class Standing:
    """Where one rank stood when the launch was ended."""

    rank: int
    state: str  # starting, running, returned, failed
    frames: tuple[Frame, ...] = ()


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

    def follow(self, time_limit: float | None) -> Outcome:
        """Wait until every rank has returned, one has failed, or `time_limit` seconds are over."""
        deadline = time.monotonic() + time_limit if time_limit else float("inf")
        while True:
            self._wait_for_news()
            self._output.pump()
            if self._cause_is_known():
                return self._failed()
            if all(state == "returned" for state in self._states):
                self._release()
                return Outcome()
            if time.monotonic() > deadline:
                return Outcome(out_of_time=True, standings=self._standings())

    def _wait_for_news(self) -> None:
        running = [r for r, p in enumerate(self._processes) if self._states[r] not in ("failed", "lost")]
        handles = [self._channels[r] for r in running] + [self._processes[r].sentinel for r in running]
        ready = set(wait(handles, timeout=TICK))
        for rank in running:
            # The sentinel alone would not do: a process that the rank has forked holds it open.
            ended = self._processes[rank].exitcode is not None
            if ended or self._channels[rank] in ready:
                self._hear(rank, ended=ended)
        if all(state == "ready" for state in self._states):
            self._start_all()

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
            _await_end([self._processes[rank]], CAUSE_GRACE)
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
        return Failure(
            rank=rank,
            error_type=_how_it_ended(self._processes[rank].exitcode),
            message=_last_words(self._orders.log(rank)),
            at=time.monotonic(),
        )

    def _first(self) -> Failure:
        return min(self._failures, key=lambda f: (f.is_peer_gone, f.is_timeout, f.at))

    def _cause_is_known(self) -> bool:
        if not self._failures:
            return False
        waited = time.monotonic() - self._noticed
        all_known = all(state in ("failed", "returned") for state in self._states)
        return all_known or waited > (CAUSE_GRACE if self._first().is_peer_gone else SETTLE)

    def _failed(self) -> Outcome:
        first = self._first()
        return Outcome(failure=first, stuck=first.is_timeout, standings=self._standings())

    def _standings(self) -> tuple[Standing, ...]:
        asked = [r for r, state in enumerate(self._states) if state in ("starting", "ready", "running")]
        stacks = self._stacks(asked)
        failed = {f.rank: f.frames for f in self._failures}
        return tuple(
            Standing(rank, state, stacks.get(rank) or failed.get(rank, ()))
            for rank, state in enumerate(self._states)
        )

    def _stacks(self, ranks: Sequence[int]) -> dict[int, tuple[Frame, ...]]:
        """Ask `ranks` for their Python stacks and read what they wrote."""
        if not hasattr(signal, "SIGUSR1"):
            return {}
        # before its file is there the signal would end a rank
        paths = {rank: self._orders.stack(rank) for rank in ranks if self._orders.stack(rank).exists()}
        for rank in paths:
            with contextlib.suppress(ProcessLookupError):  # it ended in this very moment
                os.kill(self._processes[rank].pid, signal.SIGUSR1)
        until = time.monotonic() + STACK_GRACE
        sizes, before = [0], None
        while time.monotonic() < until and (0 in sizes or sizes != before):
            time.sleep(0.01)
            before, sizes = sizes, [path.stat().st_size for path in paths.values()]
        return {rank: _parse_stack(path) for rank, path in paths.items()}

    def _release(self) -> None:
        """All have returned: let them leave the group together and wait for their end."""
        for channel in self._channels:
            with contextlib.suppress(OSError):  # it ended by itself, after it had returned
                channel.send("leave")
        _await_end(self._processes, LEAVE_GRACE)


def end_all(processes: Sequence[BaseProcess]) -> None:
    """End every rank that is left, with the processes it started, and wait until they are gone."""
    for process in processes:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (AttributeError, ProcessLookupError, PermissionError):
            process.kill()  # no groups on this system, or it had not made its own yet
    _await_end(processes, LEAVE_GRACE)
    for process in processes:
        process.join(0)  # lets go of its descriptors


def _await_end(processes: Sequence[BaseProcess], seconds: float) -> None:
    """Wait until all have ended. `join` would also wait for the processes that they have forked."""
    until = time.monotonic() + seconds
    while any(process.exitcode is None for process in processes) and time.monotonic() < until:
        time.sleep(0.002)


def _how_it_ended(exitcode: int | None) -> str:
    if exitcode is None:
        return "closed its connection"
    if exitcode >= 0:
        return f"ended with exit code {exitcode}"
    name = {number.value: number.name for number in signal.Signals}.get(-exitcode, f"signal {-exitcode}")
    return f"ended by {name}"


def _last_words(log: Path) -> str:
    """The last lines that a rank printed, which often name the reason when it could not report one."""
    if not log.exists():
        return ""
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        lines = file.read().decode("utf-8", "replace").splitlines()
    return "\n".join(line for line in lines[-5:] if line.strip())


def _parse_stack(path: Path) -> tuple[Frame, ...]:
    """The main thread's stack from a faulthandler dump, outermost call first, from the rank's entry on."""
    # faulthandler lists the main thread last
    main = path.read_text(errors="replace").split("most recent call first")[-1]
    main = re.sub(_ESCAPED, lambda match: chr(int(match[match.lastindex], 16)), main)
    found = re.findall(r'File "(.+)", line (\d+) in (.+)', main)
    frames = [Frame(file, int(line), function) for file, line, function in reversed(found)]
    entered = [i for i, frame in enumerate(frames) if frame.file == _rank.__file__]
    return tuple(frames[entered[0] :]) if entered else ()
