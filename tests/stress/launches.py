"""One launch, with a fault or without, and what is wrong with it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

import faults
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_src import launch, spawn

TIME_LIMIT = 60  # seconds; a launch that needs them is not right
STUCK_AFTER = 2  # seconds


def job(rank: int, number: int) -> tuple[list[float], list[float]]:
    """One DDP step and one all-reduce; all in whole numbers, so that the results are exact."""
    model = DDP(nn.Linear(8, 2, bias=False))
    nn.init.zeros_(model.module.weight)
    model(torch.full((1, 8), float(rank + number))).sum().backward()
    torch.optim.SGD(model.parameters(), lr=1).step()
    total = torch.full((1000,), float(rank + number))
    dist.all_reduce(total)
    return model.module.weight.unique().tolist(), total.unique().tolist()


def what_is_wrong_with_job(number: int, start_method: str, ends: list[int | None]) -> str:
    """Launch it; "" where both ranks hold minus the mean and the sum of what they were given."""
    try:
        results = spawn(
            job, (number,), 2, backend="gloo", start_method=start_method, time_limit=TIME_LIMIT, show=False
        )
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    wanted = [([-(number + 0.5)], [2.0 * number + 1])] * 2
    if results != wanted:
        return f"{wanted} was due, and it was {results}"
    return "" if ends == [0, 0] else f"the ranks' exit codes were {ends}"


def what_is_wrong_with_fault(plan: faults.Plan) -> str:
    """Launch it; "" where the error is the right one."""
    timeout = STUCK_AFTER if faults.FAULTS[plan.kind].stuck else TIME_LIMIT
    with tempfile.TemporaryDirectory() as folder:
        args = (plan, Path(folder, "note"))
        try:
            spawn(
                faults.work,
                args,
                plan.world_size,
                backend="gloo",
                timeout=timeout,
                time_limit=TIME_LIMIT,
                show=False,
            )
        except Exception as error:
            return faults.what_is_wrong(plan, error)
    return faults.what_is_wrong(plan, None)


@contextmanager
def noted_ends() -> Iterator[list[int | None]]:
    """The exit codes of the ranks of the latest launch, which `spawn` itself has no use for after success."""
    ends: list[int | None] = []
    end_all = launch.end_all

    def end_all_and_note(processes: Sequence[BaseProcess]) -> None:
        ends[:] = [process.exitcode for process in processes]
        end_all(processes)

    launch.end_all = end_all_and_note
    try:
        yield ends
    finally:
        launch.end_all = end_all
