"""What runs on a rank: join the group, call the function, report what came of it, leave cleanly."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import pickle
import re
import sys
import sysconfig
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import util
from multiprocessing.connection import Connection
from pathlib import Path

from ddp_src._process import arm_stack_dump, die_with_parent, keep_own, send_output_to

FOREVER = 365 * 86_400.0  # seconds
# An error of torch's backend, also as the reason of one that the learner's code raised.
_BACKEND_ERROR = r"(?m)^(?:RuntimeError|torch\.distributed\.\w+): .*"
_PEER_GONE = r"(?i:(?:gloo|nccl|socket).*(?:connection (?:closed|reset|refused)|broken pipe))"
_TIMED_OUT = r"(?i:(?:gloo|nccl|store).*(?:timed out|timeout)|wait timeout)"
_BARRIER_FAILED = "failed to pass monitoredBarrier"  # level DETAIL says this of both


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
    """

    rank: int
    error_type: str
    message: str
    frames: tuple[Frame, ...] = ()
    traceback: str = ""
    at: float = 0.0

    @property
    def is_peer_gone(self) -> bool:
        """Whether this is what a rank sees when another one dies: a consequence, not a cause."""
        return bool(re.search(f"{_BACKEND_ERROR}(?:{_PEER_GONE}|{_BARRIER_FAILED})", self.traceback))

    @property
    def is_timeout(self) -> bool:
        """Whether a collective gave up waiting for the other ranks."""
        return bool(re.search(f"{_BACKEND_ERROR}(?:{_TIMED_OUT}|{_BARRIER_FAILED})", self.traceback))


def users_frames(frames: Sequence[Frame]) -> list[Frame]:
    """The frames of the learner's own code: not Python's, not a package's, not the launcher's."""
    paths = sysconfig.get_paths()
    foreign = [paths[k] + os.sep for k in ("stdlib", "platstdlib", "purelib", "platlib")]
    return [f for f in frames if not f.file.startswith((*foreign, "<frozen")) and f.file != __file__]


def run(rank: int, orders: Orders, channels: Sequence[Connection], lifelines: Sequence[Connection]) -> None:
    """The entry point of every rank; never returns."""
    gc.freeze()  # else a collection walks, and so copies, all that a warm rank shares with the server
    channel = keep_own(channels, rank)
    try:
        _work(rank, orders, channel, keep_own(lifelines, rank))
        channel.recv()  # "leave", once all have returned; after a failure the parent ends this process here
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
        fn, args = _prepare(rank, orders)
        channel.send("ready")
        channel.recv()  # "go": no rank joins before all of them can
        _join_group(rank, orders)
        _save_result(fn(rank, *args), orders.result(rank))
        channel.send("returned")
    except BaseException as error:  # KeyboardInterrupt and SystemExit too: no result is a failure
        channel.send(_describe(rank, error))


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
    if orders.debug:
        dist.set_debug_level(dist.DebugLevel.DETAIL)
    with open(orders.payload(), "rb") as file:
        return pickle.load(file)


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
    path.write_bytes(data)


def _describe(rank: int, error: BaseException) -> Failure:
    at = time.monotonic()
    try:
        message = str(error)
    except BaseException as second:
        message = f"(its message cannot be shown: {type(second).__name__})"
    summary = traceback.extract_tb(error.__traceback__)
    return Failure(
        rank=rank,
        error_type=type(error).__name__,
        message=_printable(message),
        frames=tuple(Frame(f.filename, f.lineno or 0, f.name) for f in summary),
        traceback=_printable("".join(traceback.format_exception(error))),
        at=at,
    )


def _printable(text: str) -> str:
    """Without the lone surrogates that a file name can hold and no notebook can take."""
    return text.encode("utf-8", "backslashreplace").decode()


def _leave() -> None:
    """Leave the group and end what this rank started and left running."""
    from ddp_src.distributed import leave

    leave()
    for child in multiprocessing.active_children():
        child.kill()  # one that ignores a polite signal would keep the next line waiting
    util._exit_function()  # what a child of multiprocessing does at its end, such as unlinking semaphores
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # fn closed it, or set it to None
            stream.flush()
