"""The ways to start a process, tried out: what each costs, and what the new process has of its parent."""

from __future__ import annotations

import json
import multiprocessing
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, BinaryIO

import torch
import torch.multiprocessing as mp
from torch import Tensor, nn

from ddp_src.launch import LaunchRefused, spawn
from ddp_src.terminal import childrens_output

RANKS = 2
OURS = "ddp_src.spawn"
# What became of a thing of the parent's in the ranks.
COPIED, SHARED, ABSENT, REFUSED, NO_GPU = "copied", "shared", "absent", "refused", "no GPU"

SETTINGS: dict[str, float] = {}  # empty when this module is imported; the parent fills it in afterwards


@dataclass(frozen=True)
class Way:
    """One way to start ranks, as tried here.

    seconds: from the call to the first line of the function, median over the ranks.
    private_mb: memory that a rank shares with no other process there, MB, median; None where only
        Linux could tell.
    fate: for each thing of the parent's, what became of it.
    weight: a weight that the parent passed as 0, after one step of −1 on each rank, as the parent sees it.
    """

    name: str
    seconds: float
    private_mb: float | None
    fate: dict[str, str]
    weight: float


def look(rank: int, called: float, folder: str, seen: list, total: Tensor, model: nn.Linear) -> None:
    """What every rank runs: try out what there is of the parent's, change it, and write a report."""
    report = {"seconds": time.monotonic() - called, "private_mb": private_mb()}
    report["has variable"] = "lr" in SETTINGS
    report["has thread"] = "of the parent" in [thread.name for thread in threading.enumerate()]
    report["random"] = torch.rand(1).item()
    report["gpu"] = try_gpu()
    seen.append(rank)
    total.add_(1)
    model(torch.ones(1, 1)).sum().backward()  # the gradient is 1
    with torch.no_grad():
        model.weight -= model.weight.grad
    Path(folder, f"{rank}.json").write_text(json.dumps(report))


def read_on(rank: int, file: BinaryIO) -> None:
    """Read the open file that the parent passed."""
    file.read(4)


def try_gpu() -> str:
    """Compute on the GPU, if this process may. The parent has done so before."""
    try:
        torch.zeros(1, device="cuda")
    except (RuntimeError, AssertionError) as error:
        return REFUSED if "forked" in str(error) else NO_GPU
    return ABSENT  # nothing was inherited: this process has made a context of its own


def private_mb() -> float | None:
    """Memory of this process that no other process has a part in, MB; None where there is no /proc."""
    try:
        text = Path("/proc/self/smaps_rollup").read_text()
    except OSError:
        return None
    return sum(int(kb) for kb in re.findall(r"Private_(?:Clean|Dirty): +(\d+) kB", text)) * 1024 / 1e6


def try_way(name: str) -> Way:
    """Start ranks by "fork", "forkserver", "spawn" or `OURS`, and compare them with this process."""
    seen, total, model = [], torch.zeros(1), nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    with tempfile.TemporaryDirectory() as folder:
        with something_to_inherit():
            _start(name, look, (time.monotonic(), folder, seen, total, model))
        reports = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(RANKS)]
    memory = [report["private_mb"] for report in reports]
    first = reports[0]
    return Way(
        name,
        median(report["seconds"] for report in reports),
        median(memory) if None not in memory else None,
        {
            "list argument": SHARED if seen else COPIED,
            "tensor argument": SHARED if total.item() else COPIED,
            "parent's variable": COPIED if first["has variable"] else ABSENT,
            "function of a cell": _fate_of_function(name),
            "random state": COPIED if first["random"] == reports[1]["random"] else ABSENT,
            "open file": _fate_of_file(name),
            "thread": SHARED if first["has thread"] else ABSENT,
            "CUDA context": first["gpu"],
        },
        model.weight.item(),
    )


def try_each(rank: int) -> list[Way]:
    """Python's own ways, tried from a process that has torch loaded and nothing else of the notebook."""
    known = set(multiprocessing.get_all_start_methods())
    if not can_fork():
        known.discard("fork")
    return [try_way(name) for name in ("fork", "forkserver", "spawn") if name in known]


def can_fork() -> bool:
    """Whether this system has fork; not on macOS, where it can crash, as Python's documentation says."""
    return "fork" in multiprocessing.get_all_start_methods() and sys.platform != "darwin"


def _start(name: str, function: Any, args: Sequence[Any], ranks: int = RANKS) -> None:
    if name == OURS:
        spawn(function, tuple(args), ranks, backend="gloo", show=False)
    else:
        mp.start_processes(function, tuple(args), ranks, start_method=name)


@contextmanager
def something_to_inherit() -> Iterator[None]:
    """Give this process a thread, a variable and, where there is a GPU, a CUDA context."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait, name="of the parent")
    thread.start()
    SETTINGS["lr"] = 0.1
    if torch.cuda.is_available():
        torch.zeros(1, device="cuda")
    try:
        yield
    finally:
        SETTINGS.clear()
        done.set()
        thread.join()


def _fate_of_file(name: str) -> str:
    """Pass an open file: does the position of this process's own move when the rank reads?"""
    with tempfile.TemporaryFile(buffering=0) as file:
        file.write(b"12345678")
        file.seek(0)
        try:
            _start(name, read_on, (file,), ranks=1)
        except (TypeError, LaunchRefused):  # it cannot be pickled
            return REFUSED
        return SHARED if file.tell() else COPIED


def _fate_of_function(name: str) -> str:
    """Start a function that only this process has, in its `__main__`, as a notebook's cells have theirs."""
    main = sys.modules["__main__"]
    space: dict[str, Any] = {"__name__": "__main__"}
    exec("def from_a_cell(rank=0): pass", space)
    main.from_a_cell = space["from_a_cell"]
    try:
        if name == OURS:
            spawn(main.from_a_cell, nprocs=1, backend="gloo", show=False)
            return COPIED
        with childrens_output():  # Python writes why to the terminal
            process = multiprocessing.get_context(name).Process(target=main.from_a_cell)
            process.start()
            process.join()
        return REFUSED if process.exitcode else COPIED
    finally:
        del main.from_a_cell
