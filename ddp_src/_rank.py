"""What runs on a rank: join the group, call the function, report what came of it, leave cleanly."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import pickle
import re
import signal
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import util
from multiprocessing.connection import Connection
from pathlib import Path

FOREVER = timedelta(days=365)


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
    """How one rank failed. `frames` run from the outermost call inwards; `at` is the monotonic clock's."""

    rank: int
    error_type: str
    message: str
    frames: tuple[Frame, ...] = ()
    traceback: str = ""
    at: float = 0.0

    @property
    def is_peer_gone(self) -> bool:
        """Whether this is what a rank sees when another one dies: a consequence, not a cause."""
        return bool(re.search(r"(?i)connection (closed|reset|refused)|broken pipe", self.message))

    @property
    def is_timeout(self) -> bool:
        """Whether a collective gave up waiting for the other ranks."""
        return bool(re.search(r"(?i)timed out waiting|wait timeout|application timeout", self.message))


def users_frames(frames: Sequence[Frame]) -> list[Frame]:
    """The frames of the learner's own code: not Python's, not a package's, not the launcher's."""
    paths = sysconfig.get_paths()
    foreign = [paths[k] + os.sep for k in ("stdlib", "platstdlib", "purelib", "platlib")]
    return [f for f in frames if not f.file.startswith((*foreign, "<frozen")) and f.file != __file__]


def run(rank: int, orders: Orders, channels: Sequence[Connection], lifelines: Sequence[Connection]) -> None:
    """The entry point of every rank; never returns."""
    channel = _own(channels, rank)
    _die_with_parent(_own(lifelines, rank))
    _send_output_to(orders.log(rank))
    _arm_stack_dump(orders.stack(rank))
    try:
        fn, args = _prepare(rank, orders)
        channel.send("ready")
        channel.recv()  # "go": no rank joins before all of them can
        _join_group(rank, orders)
        _save_result(fn(rank, *args), orders.result(rank))
        channel.send("returned")
        fn = args = None
    except BaseException as error:  # KeyboardInterrupt and SystemExit too: no result is a failure
        channel.send(_describe(rank, error))
    channel.recv()  # "leave", once all have returned; after a failure the parent ends this process here
    _leave()


def _own(connections: Sequence[Connection], rank: int) -> Connection:
    """Close the other ranks' ends, which this process was handed as well."""
    for other, connection in enumerate(connections):
        if other != rank:
            connection.close()
    return connections[rank]


def _die_with_parent(lifeline: Connection) -> None:
    """End this process and its children when the parent, which alone holds the other end, is gone."""
    if not hasattr(os, "setpgid"):
        threading.Thread(target=_wait_for_end_of, args=(lifeline,), daemon=True).start()
        return
    os.setpgid(0, 0)  # Ctrl-C reaches the parent alone, and one signal reaches this rank's children
    if sys.platform != "linux":
        threading.Thread(target=_wait_for_end_of, args=(lifeline,), daemon=True).start()
        return
    import fcntl

    # The kernel sends the signal itself: a thread could not, while another one holds the GIL.
    descriptor = lifeline.fileno()
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(descriptor, 10, signal.SIGKILL)  # F_SETSIG, which the module does not name
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if lifeline.poll():  # it was gone before the signal was asked for
        os.killpg(0, signal.SIGKILL)


def _wait_for_end_of(lifeline: Connection) -> None:
    lifeline.poll(None)
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _send_output_to(log: Path) -> None:
    """Everything this process prints, from Python or C, goes to its log; it reads nothing."""
    for descriptor, target, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND),
    ):
        opened = os.open(target, flags, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.dup2(1, 2)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 (lives as long as the process)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)


def _arm_stack_dump(path: Path) -> None:
    """On SIGUSR1 write the stack of every thread to `path`, even while the GIL is held."""
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR1, file=open(path, "w"), all_threads=True)  # noqa: SIM115


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
    import torch
    import torch.distributed as dist

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
        timeout=timedelta(seconds=orders.timeout) if orders.timeout else FOREVER,
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
    try:
        message = str(error)
    except Exception as second:
        message = f"(its message cannot be shown: {type(second).__name__})"
    summary = traceback.extract_tb(error.__traceback__)
    return Failure(
        rank=rank,
        error_type=type(error).__name__,
        message=message,
        frames=tuple(Frame(f.filename, f.lineno or 0, f.name) for f in summary),
        traceback="".join(traceback.format_exception(error)),
        at=time.monotonic(),
    )


def _leave() -> None:
    """Leave the group, then the process, at once: torch's own exit can abort (see chapter 02)."""
    from ddp_src.distributed import leave

    leave()
    for child in multiprocessing.active_children():
        child.terminate()
    util._exit_function()  # what a child of multiprocessing does at its end, such as unlinking semaphores
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
