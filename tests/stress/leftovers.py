"""What a process and its launches hold: processes, files, ports, semaphores, threads, memory (Linux)."""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path

KINDS = ("processes", "files", "pipes", "ports", "semaphores", "threads")
# What a first launch starts and keeps, one process of each kind: the warm server, multiprocessing's tracker,
# and a shell and what it waits in, to remove the launcher's folder should this process be killed.
_MAY_LIVE = ("forkserver import main", "resource_tracker import main", "sh -c exec 3", "cat")
_MAY_STAY = r"ddp-\d+-\w{8}(/listener-\w+|/torchinductor)?"
_TORCHS_OWN = "torchinductor_"  # the cache that torch makes for each user when its compiler is imported
_LOGS = r"ddp-\d+-\w{8}/launch-\w+(/rank\d+\.log)?"


def held(temporary: Path, *, logs: bool = False) -> dict[str, set[str]]:
    """All that is there now, by kind.

    `temporary` is the temporary folder of this process and its descendants alone; it is how they are known.
    With `logs` those of failed launches, which are kept until this process ends, do not count.
    """
    files = {str(path.relative_to(temporary)) for path in temporary.rglob("*")}
    files = {name for name in files if not name.startswith(_TORCHS_OWN)}
    processes = _processes_of(temporary)
    return {
        "processes": processes,
        "files": {name for name in files if not (logs and re.fullmatch(_LOGS, name))},
        "pipes": {name for name in _descriptors("self") if not name.startswith("/proc/")},
        "ports": _listening({"self", *processes}),
        "semaphores": set(os.listdir("/dev/shm")),
        "threads": set(os.listdir("/proc/self/task")),
    }


def left_since(
    before: dict[str, set[str]], temporary: Path, *, logs: bool, grace: float = 5
) -> dict[str, set[str]]:
    """What is held now and was not `before`; what is about to go has `grace` seconds to do so."""
    until = time.monotonic() + grace
    while True:
        now = held(temporary, logs=logs)
        left = {kind: now[kind] - before[kind] for kind in KINDS}
        if not any(left.values()) or time.monotonic() > until:
            return left | {"processes": set(map(name_of, left["processes"]))}
        time.sleep(0.05)


def more_than_needed(after_first: dict[str, set[str]]) -> set[str]:
    """The processes and files after the first launch that need not be there."""
    names = set(map(name_of, after_first["processes"]))
    for expected in _MAY_LIVE:
        names.discard(next((name for name in names if expected in name), ""))
    return names | {name for name in after_first["files"] if not re.fullmatch(_MAY_STAY, name)}


def resident_mb() -> float:
    """The memory of this process that is in RAM, in MB."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024


def _processes_of(temporary: Path) -> set[str]:
    """The pids of all that were started with this temporary folder, wherever their parent is."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
            environment = (process / "environ").read_bytes()  # a zombie has none
            if parent == str(os.getpid()) or f"TMPDIR={temporary}\0".encode() in environment:
                found.add(process.name)
    return found


def name_of(pid: str) -> str:
    """A process by its pid and the command that it runs."""
    with contextlib.suppress(OSError):
        words = Path("/proc", pid, "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        return f"{pid} {b' '.join(words).decode(errors='replace')[:100]}"
    return pid


def _descriptors(pid: str) -> set[str]:
    """What the open descriptors of a process stand for, such as "socket:[1234]"."""
    found = set()
    with contextlib.suppress(OSError):
        for path in Path("/proc", pid, "fd").iterdir():
            with contextlib.suppress(OSError):
                found.add(os.readlink(path))
    return found


def _listening(pids: set[str]) -> set[str]:
    """The TCP addresses, in the kernel's hexadecimal, on which one of `pids` listens."""
    ours = set().union(*map(_descriptors, pids))
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path("/proc/net", table).read_text().splitlines()[1:]
    ]
    return {row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in ours}
