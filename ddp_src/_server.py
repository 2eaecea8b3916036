"""The warm server: a process that has torch imported already and forks into ranks in milliseconds."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ddp_src._failures import LaunchRefused
from ddp_src._folder import root_folder

# Imports only, and never ddp_src or the learner's modules, so that edits to them count at the next launch.
# DDP imports torch._dynamo when the first model is wrapped, which would cost every rank a second.
PRELOAD = ("torch", "torch.distributed", "torch.nn.parallel", "torch._dynamo", "cloudpickle")
# What Python, the loader, OpenMP and torch read once, when they start.
READ_AT_START = (
    r"PYTHON(?:HASHSEED|MALLOC|DEVMODE|WARNINGS|OPTIMIZE)|LD_PRELOAD|MALLOC_.*|GOMP_.*|"
    r"OMP_(?:PROC_BIND|PLACES|WAIT_POLICY|STACKSIZE)|ATEN_CPU_CAPABILITY|"
    r"TORCH_(?:CPP_LOG_LEVEL|SHOW_CPP_STACKTRACES|LOGS|LOGS_OUT|TRACE|FR_BUFFER_SIZE)"
)


def default_start_method() -> str:
    """ "forkserver" on Linux; "spawn" where forking after torch was loaded is unproven."""
    return "forkserver" if sys.platform == "linux" else "spawn"


def let_waiting_threads_sleep() -> None:
    """Keep OpenMP's threads from spinning while they wait, in processes that load torch from now on.

    Where other programs compute too, a spinning thread takes the core from the very thread it waits for:
    on 2 busy cores a step on 2 threads took 241 ms spinning and 10 ms sleeping. OMP_WAIT_POLICY, if the
    user has set it, stays.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def warm_up() -> None:
    """Start the server in the background, so that the first launch need not wait for it.

    Returns at once. It ends with this process; where the start method is "spawn" it does nothing.
    """
    let_waiting_threads_sleep()
    if default_start_method() != "forkserver":
        return
    from multiprocessing import forkserver

    multiprocessing.get_context("forkserver").set_forkserver_preload(list(PRELOAD))
    _end_server_without_socket()
    with _servers_environment(root_folder()):
        try:
            forkserver.ensure_running()
        except OSError as error:
            raise _cannot_start(error) from None
    _remember_what_it_read()


def _cannot_start(error: OSError) -> LaunchRefused:
    cure = "set a shorter TMPDIR", "请换一个路径较短的 TMPDIR"
    if "too long" not in str(error):
        cure = "end some processes, or close some files", "请先结束一些进程或关闭一些文件"
    return LaunchRefused(
        f'the warm server cannot start ({error}): {cure[0]}, or use start_method="spawn".',
        f'热启动服务无法启动（{error}）：{cure[1]}，或使用 start_method="spawn"。',
    )


@contextmanager
def _servers_environment(folder: os.PathLike) -> Iterator[None]:
    """What the server inherits and its ranks do not: see `Orders.environ`."""
    from multiprocessing import resource_tracker

    # Their `python -c` would import the learner's random.py or logging.py in place of Python's own.
    safe_path = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    resource_tracker.ensure_running()  # it lets Ctrl-C through again once it has started the tracker
    # Ctrl-C in a terminal must not reach it while it is still importing.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if cache is None:  # importing torch._dynamo makes this folder; by itself beside ours, to stay
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(folder, "torchinductor")
    try:
        yield
    finally:
        if cache is None:
            del os.environ["TORCHINDUCTOR_CACHE_DIR"]
        if safe_path is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = safe_path
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _end_server_without_socket() -> None:
    """Something may have swept the temporary folder: nobody reaches the server then, and it starts anew."""
    pid, address = _server()
    if pid and address and not os.path.exists(address):
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # multiprocessing, which started it, reaps it


def _forget_server() -> None:
    """A process that was forked off has its parent's server on record, which it can neither watch nor end."""
    from multiprocessing.forkserver import _forkserver as server

    if getattr(server, "_forkserver_pid", None) is not None:
        os.close(server._forkserver_alive_fd)  # else the server outlives the parent by this process
        server._forkserver_pid = server._forkserver_alive_fd = server._forkserver_address = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_server)


def _server() -> tuple[int | None, str | None]:
    """The server's process and its socket, for which the standard library has no public names."""
    from multiprocessing.forkserver import _forkserver as server

    return getattr(server, "_forkserver_pid", None), getattr(server, "_forkserver_address", None)


# --- variables that were set too late for it ------------------------------------------------------------


@dataclass(frozen=True)
class _StartedWith:
    pid: int | None
    variables: dict[str, str]


_started_with = _StartedWith(None, {})


def set_too_late() -> list[str]:
    """The variables that count only when torch is loaded, and are not what they were for the server."""
    pid, _ = _server()
    if pid is None or pid != _started_with.pid:
        return []  # the next launch starts it with what is set now
    return sorted({name for name, _ in _read_at_start().items() ^ _started_with.variables.items()})


def _remember_what_it_read() -> None:
    global _started_with
    pid, _ = _server()
    if pid != _started_with.pid:
        _started_with = _StartedWith(pid, _read_at_start())


def _read_at_start() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if re.fullmatch(READ_AT_START, name)}
