"""Where the ranks stand: each is asked for its Python stack, and gives it even while it holds the GIL."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from ddp_src._reports import Frame, entry_file

STACK_GRACE = 1.0  # seconds
_ESCAPED = r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))"  # what is not ASCII, in a faulthandler dump


def collect_stacks(pids: Mapping[int, int], paths: Mapping[int, Path]) -> dict[int, tuple[Frame, ...]]:
    """Ask the ranks, whose processes `pids` names, for their stacks; `paths` is where each writes its own.

    A rank that gave none, or has not begun its work yet, has no frames.
    """
    if not hasattr(signal, "SIGUSR1"):
        return {}
    asked = {rank: paths[rank] for rank in pids if paths[rank].exists()}  # without it the signal would end it
    for rank in asked:
        with contextlib.suppress(ProcessLookupError):  # it ended in this very moment
            os.kill(pids[rank], signal.SIGUSR1)
    until = time.monotonic() + STACK_GRACE
    sizes, before = [0], None
    while time.monotonic() < until and (0 in sizes or sizes != before):
        time.sleep(0.01)
        before, sizes = sizes, [path.stat().st_size for path in asked.values()]
    return {rank: _parse(path) for rank, path in asked.items()}


def _parse(path: Path) -> tuple[Frame, ...]:
    """The main thread's stack from a faulthandler dump, outermost call first, from the rank's entry on."""
    # faulthandler lists the main thread last
    main = path.read_text(errors="replace").split("most recent call first")[-1]
    main = re.sub(_ESCAPED, lambda match: chr(int(match[match.lastindex], 16)), main)
    found = re.findall(r'File "(.+)", line (\d+) in (.+)', main)
    frames = [Frame(file, int(line), function) for file, line, function in reversed(found)]
    entered = [i for i, frame in enumerate(frames) if frame.file == entry_file()]
    return tuple(frames[entered[0] :]) if entered else ()


def is_stopped(pid: int) -> bool:
    """Whether a signal such as SIGSTOP has stopped this process (Linux; elsewhere it is not known)."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    return False
