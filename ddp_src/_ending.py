"""The end of ranks: waiting for it, bringing it about, and saying how it came."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

from ddp_src._reports import WATCHDOG

LEAVE_GRACE = 10.0  # seconds
TAIL = 65_536  # bytes of a log in which a last word is looked for


def end_all(processes: Sequence[BaseProcess]) -> None:
    """End every rank that is left, with the processes it started, and wait until they are gone."""
    strays = [pid for process in processes if process.exitcode is None for pid in descendants(process.pid)]
    for process in processes:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (AttributeError, ProcessLookupError, PermissionError):
            process.kill()  # no groups on this system, or it had not made its own yet
    end_processes(strays)  # those that have left the rank's group
    await_end(processes, LEAVE_GRACE)
    for process in processes:
        process.join(0)
        if process.exitcode is not None:
            process.close()  # lets go of its descriptors, which an interrupt's traceback would keep


def descendants(pid: int) -> list[int]:
    """The processes that `pid` has started, and those that they have (Linux; elsewhere none is found)."""
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, children.read_text().split()):
                found += [child, *descendants(child)]
    return found


def end_processes(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def await_end(processes: Sequence[BaseProcess], seconds: float) -> None:
    """Wait until all have ended. `join` would also wait for the processes that they have forked."""
    until = time.monotonic() + seconds
    while any(process.exitcode is None for process in processes) and time.monotonic() < until:
        time.sleep(0.002)


def how_it_ended(exitcode: int | None) -> str:
    if exitcode is None:
        return "closed its connection"
    if exitcode >= 0:
        return f"ended with exit code {exitcode}"
    name = {number.value: number.name for number in signal.Signals}.get(-exitcode, f"signal {-exitcode}")
    return f"ended by {name}"


def last_words(log: Path) -> str:
    """The last lines that a rank printed, which often name the reason when it could not report one.

    Of one that NCCL's watchdog has ended it is the line that says so, which a long stack follows.
    """
    if not log.exists():
        return ""
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - TAIL))
        lines = file.read().decode("utf-8", "replace").splitlines()
    watchdog = [line for line in lines if WATCHDOG in line]
    return "\n".join(watchdog[:1] or [line for line in lines[-5:] if line.strip()])
