"""Launch a thousand times from one process, and count what is not right and what is left behind.

    ./launch.sh test --stress [--warm N] [--cold N] [--faults N] [--seed S] [--only NUMBER]

Every launch without a fault does a DDP step and an all-reduce, whose results are checked. Every launch with
one is drawn from the seed; its error has to name the right cause and the right rank. Prints a table; the
status is 1 if anything is not right. What is not right is told at once, with the way to repeat it.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import faults
import launches
import leftovers

MAY_GROW = 5.0  # MB
SETTLED = 50  # launches, after which memory has to stay as it is


@dataclass
class Phase:
    """What a number of launches of one sort came to."""

    name: str
    seconds: list[float] = field(default_factory=list)
    right: int = 0
    grown: float = 0.0  # MB
    left: dict[str, set[str]] = field(default_factory=dict)

    @property
    def is_right(self) -> bool:
        return self.right == len(self.seconds) and not any(self.left.values()) and self.grown < MAY_GROW


def first_launch(ends: list[int | None], temporary: Path) -> bool:
    """The first launch starts the warm server, and leaves no more than that; True if it is right."""
    start = time.monotonic()
    wrong = launches.what_is_wrong_with_job(0, "auto", ends)
    print(f"the first launch, which starts the warm server: {time.monotonic() - start:.2f} s")
    more = leftovers.more_than_needed(leftovers.held(temporary))
    if wrong or more:
        print(f"the first launch is not right: {wrong or 'it left ' + ', '.join(more)}")
    return not wrong and not more


def run_phase(name: str, count: int, try_one: Callable[[int], str], temporary: Path) -> Phase:
    """`try_one` launches number 0 to `count` and tells what is wrong with it, if anything."""
    phase = Phase(name)
    logs = name == "fault"
    before = leftovers.held(temporary, logs=logs)
    for number in range(count):
        start = time.monotonic()
        wrong = try_one(number)
        phase.seconds.append(time.monotonic() - start)
        phase.right += not wrong
        if wrong:
            print(f"{name} launch {number} is not right: {wrong}", flush=True)
        if number + 1 == min(SETTLED, (count + 1) // 2):
            settled = _memory()
        if sys.stderr.isatty():
            print(f"\r{name}: {number + 1} of {count}", end="\r", file=sys.stderr)
    phase.grown = _memory() - settled
    phase.left = leftovers.left_since(before, temporary, logs=logs)
    return phase


def _memory() -> float:
    gc.collect()
    return leftovers.resident_mb()


def print_table(phases: list[Phase]) -> None:
    columns = ["launches", "right", "median s", "max s", "MB grown", *leftovers.KINDS]
    print(f"{'':8}" + "".join(f"{column:>11}" for column in columns))
    for phase in phases:
        times = f"{statistics.median(phase.seconds):11.2f}{max(phase.seconds):11.2f}{phase.grown:+11.1f}"
        left = "".join(f"{len(phase.left[kind]):11}" for kind in leftovers.KINDS)
        print(f"{phase.name:8}{len(phase.seconds):11}{phase.right:11}{times}{left}")
    for phase in phases:
        for kind, names in phase.left.items():
            if names:
                print(f"left after {phase.name}, {kind}: {', '.join(sorted(names)[:5])}")


def print_faults(planted: Counter[str], told: Counter[str]) -> None:
    for kind in faults.FAULTS:
        if planted[kind]:
            print(f"{kind:24}{told[kind]:5} of {planted[kind]} right")


def run(options: argparse.Namespace, temporary: Path) -> bool:
    """All phases; True if all is right."""
    planted, told = Counter(), Counter()

    def try_fault(number: int) -> str:
        number = number if options.only is None else options.only
        plan = faults.plan(options.seed, number)
        wrong = launches.what_is_wrong_with_fault(plan)
        planted[plan.kind] += 1
        told[plan.kind] += not wrong
        repeat = f"./launch.sh test --stress --seed {options.seed} --only {number}"
        return wrong and f"{plan}: {wrong}\nrepeat it with: {repeat}"

    with launches.noted_ends() as ends:
        started = first_launch(ends, temporary)
        sorts = [
            ("warm", options.warm, lambda number: launches.what_is_wrong_with_job(number, "auto", ends)),
            ("cold", options.cold, lambda number: launches.what_is_wrong_with_job(number, "spawn", ends)),
            ("fault", options.faults, try_fault),
        ]
        phases = [run_phase(name, count, one, temporary) for name, count, one in sorts if count]
    print_table(phases)
    print_faults(planted, told)
    right = started and all(phase.is_right for phase in phases)
    print("all is right" if right else "NOT ALL IS RIGHT")
    return right


def parse(arguments: list[str] | None) -> argparse.Namespace:
    usage = "./launch.sh test --stress [options]"
    parser = argparse.ArgumentParser(usage=usage, description=__doc__.splitlines()[0])
    parser.add_argument("--warm", type=_count, default=1000, metavar="N", help="launches of the warm sort")
    parser.add_argument("--cold", type=_count, default=200, metavar="N", help='with start_method="spawn"')
    parser.add_argument("--faults", type=_count, default=300, metavar="N", help="launches with a fault each")
    parser.add_argument("--seed", type=_count, default=random.randrange(10**6), help="draws the faults")
    parser.add_argument("--only", type=_count, metavar="NUMBER", help="one launch with a fault, once more")
    options = parser.parse_args(arguments)
    if options.only is not None:
        options.warm, options.cold, options.faults = 0, 0, 1
    return options


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number · {text!r} 不是非负整数")
    return int(text)


def main(arguments: list[str] | None = None) -> int:
    """Everything from one process; the status is 0 if all is right, else 1."""
    options = parse(arguments)
    if sys.platform != "linux":
        print(
            "the stress run reads /proc: run it on Linux.\n压力测试要读 /proc：请在 Linux 上运行。",
            file=sys.stderr,
        )
        return 2
    import resource  # which Windows lacks

    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    temporary = Path(tempfile.mkdtemp(prefix="soak-"))
    os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
    atexit.register(shutil.rmtree, temporary, ignore_errors=True)
    print(f"seed {options.seed}", flush=True)
    return 0 if run(options, temporary) else 1


if __name__ == "__main__":
    sys.exit(main())
