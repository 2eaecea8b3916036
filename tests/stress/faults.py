"""What can go wrong on one rank, each planted on purpose, and what `spawn` has to say of it."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_src import RankFailed, RanksStuck


@dataclass(frozen=True)
class Plan:
    """One launch with a fault: `culprit` trains `steps` steps with the others and then does `kind`."""

    kind: str
    world_size: int
    culprit: int
    steps: int
    waiting: str  # the collective in which the others sit meanwhile


def plan(seed: int, number: int) -> Plan:
    """The fault of launch `number`; of any 13 that follow a multiple of 13 each is of another kind."""
    block, index = divmod(number, len(FAULTS))
    kinds = list(FAULTS)
    random.Random(f"{seed} block {block}").shuffle(kinds)
    draw = random.Random(f"{seed} launch {number}")
    world_size = draw.choice((2, 3))
    culprit, steps, waiting = draw.randrange(world_size), draw.randrange(3), draw.choice(list(WAITING))
    if kinds[index] == "mismatched sizes":
        waiting = "all_reduce"  # against another operation it would be a hang
    return Plan(kinds[index], world_size, culprit, steps, waiting)


def work(rank: int, plan: Plan, note: Path) -> object:
    """Runs on every rank. `note` is a file that tells the other ranks of the culprit's failure."""
    model = DDP(nn.Linear(8, 2))
    wait = WAITING[plan.waiting]
    for _ in range(plan.steps):
        _step(model)
    if rank == plan.culprit:
        return FAULTS[plan.kind].plant(lambda: wait(model), note)
    if plan.kind == "two ranks fail":
        _fail_late(note)
    wait(model)
    wait(model)
    return None


def _step(model: DDP) -> None:
    model(torch.ones(4, 8)).sum().backward()


WAITING = {
    "all_reduce": lambda model: dist.all_reduce(torch.ones(3)),
    "backward": _step,
    "barrier": lambda model: dist.barrier(),
}


# --- the faults: each is called with what the others do next, and the note -------------------------------


class Noted(Exception):
    """The launcher asks a failure for its text once it has noted the time; only then may others fail."""

    def __init__(self, note: Path) -> None:
        self.note = note

    def __str__(self) -> str:
        self.note.touch()
        return "the first"


class Untransportable(Exception):
    def __init__(self) -> None:
        super().__init__("holds a lock")
        self.lock = threading.Lock()


def _raise(error: BaseException) -> None:
    raise error


def _fail_late(note: Path) -> None:
    while not note.exists():
        time.sleep(0.001)
    raise RuntimeError("the second")


def _signal_self(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(1000)


@dataclass(frozen=True)
class Fault:
    """`plant` is the fault; the other fields are the `RankFailed` that it has to become.

    With `stuck` it has to be `RanksStuck`. `by_any`: which rank notices first is left to chance.
    """

    plant: Callable[[Callable[[], None], Path], object]
    error_type: str = ""
    message: str = ""
    by_any: bool = False
    stuck: bool = False


FAULTS = {
    "exception": Fault(lambda wait, note: _raise(ValueError("no loss")), "ValueError", "no loss"),
    "two ranks fail": Fault(lambda wait, note: _raise(Noted(note)), "Noted", "the first"),
    "os._exit(3)": Fault(lambda wait, note: os._exit(3), "ended with exit code 3"),
    "os._exit(0)": Fault(lambda wait, note: os._exit(0), "ended with exit code 0"),
    "SIGKILL": Fault(lambda wait, note: _signal_self(signal.SIGKILL), "ended by SIGKILL"),
    "SIGSEGV": Fault(lambda wait, note: ctypes.string_at(0), "ended by SIGSEGV"),
    "mismatched sizes": Fault(
        lambda wait, note: dist.all_reduce(torch.ones(100_000)),
        "ended by SIGABRT",
        "Received data size doesn't match expected size",
        by_any=True,
    ),
    "KeyboardInterrupt": Fault(lambda wait, note: _signal_self(signal.SIGINT), "KeyboardInterrupt"),
    "sys.exit": Fault(lambda wait, note: sys.exit(7), "SystemExit", "7"),
    "unpicklable result": Fault(
        lambda wait, note: threading.Lock(),
        "TypeError",
        "the return value, a lock, cannot be sent to the notebook",
    ),
    "unpicklable exception": Fault(
        lambda wait, note: _raise(Untransportable()), "Untransportable", "holds a lock"
    ),
    "skipped collective": Fault(lambda wait, note: wait(), stuck=True),
    "early return": Fault(lambda wait, note: None, stuck=True),
}


# --- what has to be said of them --------------------------------------------------------------------------


def what_is_wrong(plan: Plan, error: Exception | None) -> str:
    """How what `spawn` raised differs from what it has to raise; "" where it does not."""
    fault = FAULTS[plan.kind]
    wanted = RanksStuck if fault.stuck else RankFailed
    if not isinstance(error, wanted):
        return f"{wanted.__name__} was due, and it was {type(error).__name__}: {error}"
    if isinstance(error, RanksStuck):
        return _wrong_places(plan, str(error).splitlines())
    found = f"rank {error.rank}, {error.error_type}: {error.message!r}"
    right_rank = fault.by_any or error.rank == plan.culprit
    head = f"rank {error.rank} failed first · rank {error.rank} 最先出错"
    right_text = fault.message in error.message and str(error).splitlines()[0] == head
    if right_rank and right_text and error.error_type == fault.error_type:
        return ""
    return f"rank {plan.culprit}, {fault.error_type}: {fault.message!r} was due, and it was {found}"


def _wrong_places(plan: Plan, lines: list[str]) -> str:
    """The culprit has returned, and every other rank stands in the collective."""
    done = plan.steps + (plan.kind == "skipped collective" and plan.waiting == "backward")
    # In its second forward pass DDP agrees on new buckets, which is a collective of its own.
    waiting = "forward" if plan.waiting == "backward" and done == 1 else plan.waiting
    for rank in range(plan.world_size):
        where = f"in {waiting}, " if rank != plan.culprit else "fn returned"
        if not any(line.startswith(f"rank {rank}: {where}") for line in lines):
            return f"“rank {rank}: {where}” was due, and it was\n" + "\n".join(lines)
    return ""
