"""What runs on a rank: join the group, call the function, report what came of it, leave cleanly."""

from __future__ import annotations

import contextlib
import gc
import json
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from multiprocessing import util
from multiprocessing.connection import Connection
from pathlib import Path

from ddp_src import _payload
from ddp_src._ending import descendants, end_processes
from ddp_src._folder import keep_files_in
from ddp_src._process import arm_stack_dump, die_with_parent, keep_own, send_output_to
from ddp_src._reports import Failure, Frame

FOREVER = 365 * 86_400.0  # seconds


@dataclass(frozen=True)
class Orders:
    """What every rank of one launch is told. `folder` is private to the launch, and so is all in it."""

    folder: str
    logs: str
    world_size: int
    backend: str
    timeout: float | None
    debug: bool
    threads: int
    environ: dict[str, str]
    start_method: str | None  # the caller's own choice for processes that it starts, such as loader workers

    def payload(self) -> Path:
        return Path(self.folder, "payload.pkl")

    def result(self, rank: int) -> Path:
        return Path(self.folder, f"result{rank}.pkl")

    def stack(self, rank: int) -> Path:
        return Path(self.folder, f"stack{rank}.txt")

    def log(self, rank: int) -> Path:
        return Path(self.logs, f"rank{rank}.log")


def run(rank: int, orders: Orders, channels: Sequence[Connection], lifelines: Sequence[Connection]) -> None:
    """The entry point of every rank; never returns."""
    gc.freeze()  # else a collection walks, and so copies, all that a warm rank shares with the server
    channel = keep_own(channels, rank)
    try:
        _work(rank, orders, channel, keep_own(lifelines, rank))
        # "leave" comes once all have returned; after a failure the parent ends this process here
        while channel.recv() == "where":
            channel.send(_last_collective())
        _leave()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)  # at once: torch's own exit can abort (see chapter 02)


def _work(rank: int, orders: Orders, channel: Connection, lifeline: Connection) -> None:
    """Call the function and report what came of it."""
    try:
        die_with_parent(lifeline)
        send_output_to(orders.log(rank))
        arm_stack_dump(orders.stack(rank))
        keep_files_in(Path(orders.folder))
        fn, args = _prepare(rank, orders)
        channel.send("ready")
        channel.recv()  # "go": no rank joins before all of them can
        _join_group(rank, orders)
        _save_result(fn(rank, *args), orders.result(rank))
        channel.send("returned")
    except BaseException as error:  # KeyboardInterrupt and SystemExit too: no result is a failure
        channel.send(_describe_in_peace(rank, error))


def _prepare(rank: int, orders: Orders) -> tuple:
    os.environ.clear()
    os.environ.update(orders.environ)
    local = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": orders.world_size}
    os.environ.update({name: str(value) for name, value in local.items()})
    os.environ["LOCAL_WORLD_SIZE"] = str(orders.world_size)
    # Ranks of one machine talk over loopback: nothing listens on an address that others can reach.
    if sys.platform != "win32":
        interface = "lo" if sys.platform == "linux" else "lo0"
        os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = interface
    multiprocessing.set_start_method(orders.start_method, force=True)
    import numpy
    import torch
    import torch.distributed as dist

    # Warm ranks are copies of one process: without this all would draw the same numbers in all launches.
    torch.default_generator.seed()
    numpy.random.seed()
    torch.set_num_threads(orders.threads)
    dist.set_debug_level_from_env()  # torch has read it already, when it was loaded
    if orders.debug:
        dist.set_debug_level(dist.DebugLevel.DETAIL)
    return _payload.load(orders.payload())


def _join_group(rank: int, orders: Orders) -> None:
    import torch
    import torch.distributed as dist

    if orders.backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        orders.backend,
        store=dist.FileStore(os.path.join(orders.folder, "store"), orders.world_size),
        rank=rank,
        world_size=orders.world_size,
        timeout=timedelta(seconds=min(orders.timeout or FOREVER, FOREVER)),
    )


def _save_result(result: object, path: Path) -> None:
    import cloudpickle

    try:
        data = cloudpickle.dumps(result)
    except Exception as error:
        raise TypeError(
            f"the return value, a {type(result).__name__}, cannot be sent to the notebook ({error}): "
            "return numbers, strings, tensors, or lists and dicts of them"
        ) from error
    try:
        path.write_bytes(data)
    except OSError as error:
        size = f"{len(data) / 1e6:,.1f} MB"
        raise OSError(f"the return value ({size}) cannot be written to {path.parent}: {error}") from error


def _describe_in_peace(rank: int, error: BaseException) -> Failure:
    """Describe an error, or the one that a signal handler raises meanwhile, since that one knows more.

    torch's own handler says that a loader worker was killed; before it only a connection was reset.
    """
    try:
        failure = _describe(rank, error)
        _hear_no_more_of_children()
    except BaseException as later:
        _hear_no_more_of_children()
        failure = _describe(rank, later.with_traceback(error.__traceback__))
    return failure


def _hear_no_more_of_children() -> None:
    if hasattr(signal, "SIGCHLD"):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _describe(rank: int, error: BaseException) -> Failure:
    at = time.monotonic()
    try:
        message = str(error)
    except BaseException as second:
        message = f"(its message cannot be shown: {type(second).__name__})"
    summary = traceback.extract_tb(error.__traceback__)
    failure = Failure(
        rank=rank,
        error_type=type(error).__name__,
        message=_printable(message),
        frames=tuple(Frame(f.filename, f.lineno or 0, f.name) for f in summary),
        traceback=_printable("".join(traceback.format_exception(error))),
        at=at,
    )
    return replace(failure, collective=_last_collective()) if failure.is_timeout else failure


def _last_collective() -> str:
    """The collective that this rank called last, such as "#9 all_reduce, Float [110]"; "" if not known.

    torch's flight recorder tells it, whose Python name is not a public one.
    """
    with contextlib.suppress(Exception):
        from torch._C._distributed_c10d import _dump_fr_trace_json

        last = json.loads(_dump_fr_trace_json(True, False))["entries"][-1]
        number, group = last["process_group"]
        if not group:  # under level DETAIL the recorder counts the checks too
            return ""
        name = last["profiling_name"].partition(":")[2]
        inputs = zip(last["input_dtypes"], last["input_sizes"], strict=True)
        inputs = "".join(f", {dtype} {size}" for dtype, size in inputs)
        of_group = "" if number == "0" else f" of group {number}"
        return f"#{last['collective_seq_id']} {name}{inputs}{of_group}"
    return ""


def _printable(text: str) -> str:
    """Without the lone surrogates that a file name can hold and no notebook can take."""
    return text.encode("utf-8", "backslashreplace").decode()


def _leave() -> None:
    """Leave the group and end what this rank started and left running."""
    from ddp_src.distributed import leave

    leave()
    for child in multiprocessing.active_children():
        child.kill()  # one that ignores a polite signal would keep the next lines waiting
    end_processes(descendants(os.getpid()))
    util._exit_function()  # what a child of multiprocessing does at its end, such as unlinking semaphores
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # fn closed it, or set it to None
            stream.flush()
