"""How much memory a rank has taken, and whether the system ended a process for want of it (Linux)."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path


def peak_mb(pid: int, proc: Path = Path("/proc")) -> float | None:
    """The most memory that this process has held in RAM so far, in MB; None where it cannot be read."""
    with contextlib.suppress(OSError):
        found = re.search(r"VmHWM:\s+(\d+) kB", (proc / str(pid) / "status").read_text())
        return int(found[1]) / 1024 if found else None  # a process that has ended has none
    return None


def oom_kills(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """How often the system has killed a process of this one's control group when memory ran out.

    https://docs.kernel.org/admin-guide/cgroup-v2.html names `memory.events`; version 1 has
    `memory.oom_control`. None where neither can be read.
    """
    with contextlib.suppress(OSError):
        for line in (proc / "self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            for file in (
                cgroups / path.lstrip("/") / "memory.events",
                cgroups / controllers / path.lstrip("/") / "memory.oom_control",
            ):
                with contextlib.suppress(OSError):
                    found = re.search(r"(?m)^oom_kill (\d+)$", file.read_text())
                    if found:
                        return int(found[1])
    return None
