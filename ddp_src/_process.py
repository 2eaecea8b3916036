"""How a rank lives as a process: it ends with its parent, prints to its log, and can say where it stands."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path


def keep_own(connections: Sequence[Connection], rank: int) -> Connection:
    """Close the other ranks' ends, which this process was handed as well."""
    for other, connection in enumerate(connections):
        if other != rank:
            connection.close()
    return connections[rank]


def die_with_parent(lifeline: Connection) -> None:
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
    with contextlib.suppress(OSError):  # what Windows raises where the other end is closed already
        lifeline.poll(None)
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def send_output_to(log: Path) -> None:
    """Everything this process prints, from Python or C, goes to its log; it reads nothing."""
    for descriptor, target, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND),
    ):
        opened = os.open(target, flags, 0o600)
        if opened != descriptor:
            os.dup2(opened, descriptor)
            os.close(opened)
    os.dup2(1, 2)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 (lives as long as the process)
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        # The caller's was closed; or it writes to a Windows console, by a handle that is no longer its own.
        if getattr(sys, name) is None or sys.platform == "win32":
            fresh = open(descriptor, "w", encoding="utf-8", newline="\n", closefd=False)  # noqa: SIM115
            setattr(sys, name, fresh)
        getattr(sys, name).reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    _buffer_c_output_by_line()


def _buffer_c_output_by_line() -> None:
    """By itself C keeps what it prints to a file until the end, which a rank that is killed never has."""
    stdout = {"linux": "stdout", "darwin": "__stdoutp"}.get(sys.platform)
    if stdout:
        libc, by_line = ctypes.CDLL(None), 1
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, stdout), None, by_line, ctypes.c_size_t(0))


def arm_stack_dump(path: Path) -> None:
    """On SIGUSR1 write the stack of every thread to `path`, even while the GIL is held."""
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR1, file=open(path, "w"), all_threads=True)  # noqa: SIM115
