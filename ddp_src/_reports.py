"""What is known of a rank that failed, or of one that stood somewhere when the launch was ended."""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# An error of torch's backend, also as the reason of one that the learner's code raised.
_BACKEND_ERROR = r"(?m)^(?:RuntimeError|torch\.distributed\.\w+): .*"
_PEER_GONE = r"(?i:(?:gloo|nccl|socket).*(?:connection (?:closed|reset|refused)|broken pipe))"
_TIMED_OUT = r"(?i:(?:gloo|nccl|store).*(?:timed out|timeout)|wait timeout)"
_BARRIER_FAILED = "failed to pass monitoredBarrier"  # level DETAIL says this of both
WATCHDOG = "Watchdog caught collective operation timeout"  # NCCL's last word before it aborts the process


@dataclass(frozen=True)
class Frame:
    """One line of a call stack."""

    file: str
    line: int
    function: str


@dataclass(frozen=True)
class Failure:
    """How one rank failed. `frames` run from the outermost call inwards; `at` is the monotonic clock's.

    A rank that died without a word has no traceback; its `message` is the last that it printed.
    `collective` is the last that a rank called which waited too long. `peak_mb` (MB, as last seen) and
    `oom_kills` (processes that the system ended for want of memory meanwhile) are told of SIGKILL.
    """

    rank: int
    error_type: str
    message: str
    frames: tuple[Frame, ...] = ()
    traceback: str = ""
    at: float = 0.0
    collective: str = ""
    peak_mb: float | None = None
    oom_kills: int | None = None

    @property
    def is_peer_gone(self) -> bool:
        """Whether this is what a rank sees when another one dies: a consequence, not a cause."""
        return bool(re.search(f"{_BACKEND_ERROR}(?:{_PEER_GONE}|{_BARRIER_FAILED})", self.traceback))

    @property
    def is_timeout(self) -> bool:
        """Whether a collective gave up waiting for the other ranks."""
        if not self.traceback:
            return WATCHDOG in self.message
        return bool(re.search(f"{_BACKEND_ERROR}(?:{_TIMED_OUT}|{_BARRIER_FAILED})", self.traceback))

    @property
    def waited(self) -> float | None:
        """The seconds after which a collective gave up, which a group or a call of the learner's may set."""
        number = r"(?i:waiting|after|barrier in|timeout\(ms\)=) ?(\d+)"
        found = re.search(_BACKEND_ERROR + number, self.traceback)
        return int(found[1]) / 1000 if found else None


@dataclass(frozen=True)
class Standing:
    """Where one rank stood when the launch was ended, and the last collective that it called, if known."""

    rank: int
    state: str  # starting, ready, running, stopped, returned, failed, peer gone
    frames: tuple[Frame, ...] = ()
    collective: str = ""


def users_frames(frames: Sequence[Frame]) -> list[Frame]:
    """The frames of the learner's own code: not Python's, not a package's, not the launcher's."""
    paths = sysconfig.get_paths()
    folders = [paths[name] + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    launcher = [str(Path(__file__).with_name(name)) for name in ("_", "launch.py")]
    foreign = tuple(os.path.normcase(path) for path in (*folders, "<frozen", *launcher))
    return [frame for frame in frames if not os.path.normcase(frame.file).startswith(foreign)]


def entry_file() -> str:
    """The file in which a rank's own work begins."""
    return str(Path(__file__).with_name("_rank.py"))
