"""What runs on a rank: the trial of a learner's answer, kept within bounds."""

from __future__ import annotations

import io
import linecache
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddp_src._reports import Frame, users_frames
from ddp_src.exercises._exercise import Exercise, Feedback, WrongAnswer

MEMORY_LIMIT = 2**29  # bytes that an answer may take on each rank: the kernel's machine has to live on
LINES_SHOWN = 5  # per rank
LINE_WIDTH = 200


class Unfinished(Exception):
    """The learner has not written the answer yet."""


@dataclass(frozen=True)
class Attempt:
    """What one rank reports: the trial's result for each case, and what the answer printed."""

    results: list[Any]
    printed: list[str]


def attempt(rank: int, exercise: Exercise, fn: Callable, source: dict) -> Attempt:
    """Try `fn` on each case. `source` is the caller's line cache: a cell's lines exist nowhere else.

    Raises `Unfinished`, or `WrongAnswer` with the learner's line when `fn` raises.
    """
    linecache.cache.update(source)
    _limit_memory()
    printed = _Printed()
    try:
        with redirect_stdout(printed):
            results = [exercise.trial(_finished(fn), case) for case in exercise.cases]
    except (WrongAnswer, Unfinished):
        raise
    except BaseException as error:
        if _is_unfinished(error):
            raise Unfinished from error
        # with the learner's frames, from which the launcher tells where a rank stood that waited too long
        raise _raised(rank, error).with_traceback(error.__traceback__) from error
    return Attempt(results, printed.shown())


def learners_line(frames: Sequence[Frame]) -> Feedback:
    """The innermost line of the learner's own code, in brackets; empty if there is none in `frames`."""
    ours = str(Path(__file__).parent)
    theirs = [frame for frame in users_frames(frames) if not frame.file.startswith(ours)]
    if not theirs:
        return Feedback("", "")
    number, source = theirs[-1].line, linecache.getline(theirs[-1].file, theirs[-1].line).strip()
    if not source:
        return Feedback(f" (line {number})", f"（第 {number} 行）")
    return Feedback(f" (line {number}: `{source}`)", f"（第 {number} 行：`{source}`）")


class _Printed(io.TextIOBase):
    """Stands in for stdout: keeps the first lines and counts the others."""

    def __init__(self) -> None:
        self._head = ""
        self._lines = 0

    def write(self, text: str) -> int:
        self._lines += text.count("\n")
        room = LINES_SHOWN * LINE_WIDTH - len(self._head)
        self._head += text[:room]
        return len(text)

    def shown(self) -> list[str]:
        head = self._head.split("\n")[:LINES_SHOWN]
        left_out = self._lines - LINES_SHOWN
        note = [f"… lines not shown: {left_out:,} · 还有 {left_out:,} 行没有显示"] if left_out > 0 else []
        return [line for line in head if line] + note


def _finished(fn: Callable) -> Callable:
    def answer(*args: Any) -> Any:
        value = fn(*args)
        if value is ...:
            raise Unfinished
        return value

    return answer


def _is_unfinished(error: BaseException) -> bool:
    """Whether a blank was left: `raise NotImplementedError`, or a `...` that was computed with."""
    return isinstance(error, NotImplementedError) or (
        isinstance(error, TypeError) and bool(re.search(r"\bellipsis\b", str(error)))
    )


def _raised(rank: int, error: BaseException) -> WrongAnswer:
    frames = [Frame(f.filename, f.lineno or 0, f.name) for f in traceback.extract_tb(error.__traceback__)]
    line = learners_line(frames)
    what = "".join(traceback.format_exception_only(error)).strip()
    what = what if len(what) <= 2 * LINE_WIDTH else what[: 2 * LINE_WIDTH] + " …"
    return WrongAnswer(
        f"on rank {rank} your function raises {what}{line.en}.",
        f"在 rank {rank} 上，你的函数抛出了 {what}{line.zh}。",
    )


def _limit_memory() -> None:
    """Turn hunger into a MemoryError, before the system ends some process of its own choice."""
    if sys.platform != "linux":
        return
    import resource

    used = re.search(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text())
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = int(used[1]) * 1024 + MEMORY_LIMIT
    if hard == resource.RLIM_INFINITY or limit < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
