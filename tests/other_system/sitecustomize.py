"""Lets the modules of `ddp_src` see another system: a stand-in where macOS or Windows is out of reach.

Python imports this file at its start where its folder is in PYTHONPATH; OTHER_SYSTEM is "darwin" or "win32".
It changes what `import os` and the like give to `ddp_src`, in the caller and in every rank. Python's own
modules and torch stay as they are on Linux, so nothing here says that those work elsewhere.
"""

import builtins
import ctypes
import faulthandler
import importlib.machinery
import multiprocessing
import os
import signal
import sys
import types
from pathlib import Path

# What a launcher could reach for and Python's documentation calls Unix alone.
NOT_ON_WINDOWS = {
    "os": {
        *("fork", "forkpty", "register_at_fork", "wait", "wait4", "WNOHANG", "nice", "uname", "statvfs"),
        *("getuid", "geteuid", "getpgid", "getpgrp", "getsid", "setpgid", "setsid", "killpg", "mkfifo"),
        *("sched_getaffinity", "sched_setaffinity", "O_ASYNC", "O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW"),
    },
    "signal": {name for name in dir(signal) if name.startswith(("SIG", "pthread", "setitimer", "sigwait"))}
    - {"SIGABRT", "SIGFPE", "SIGILL", "SIGINT", "SIGSEGV", "SIGTERM", "SIG_DFL", "SIG_IGN"},
    "faulthandler": {"register", "unregister"},
}
MODULES_NOT_ON_WINDOWS = {"fcntl", "grp", "pwd", "resource", "termios"}
NOT_ON_MACOS = {
    "os": {"sched_getaffinity", "sched_setaffinity"},
    "signal": {"sigtimedwait", "sigwaitinfo"},
}


class Other(types.ModuleType):
    """A module with something missing or different; all else is the real module's, also to set."""

    def __init__(self, real: types.ModuleType, missing: set[str], **different: object) -> None:
        super().__init__(real.__name__)
        vars(self).update(_real=real, _missing=missing, **different)

    def __getattr__(self, name: str) -> object:
        if name in self._missing:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(self._real, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._real, name, value)


class CStdout:
    """`ctypes.c_void_p`, where the C library's name for its standard output is that of macOS."""

    @staticmethod
    def in_dll(library: ctypes.CDLL, name: str) -> ctypes.c_void_p:
        return ctypes.c_void_p.in_dll(library, {"__stdoutp": "stdout"}[name])


def kill(pid: int, number: int) -> None:
    """`os.kill` on Windows: with 0, which asks nothing there, it would press Ctrl-C in the whole console."""
    assert number not in (0, 1), "CTRL_C_EVENT and CTRL_BREAK_EVENT have these numbers"
    os.kill(pid, number)


def refuse_to_remove_what_is_open() -> None:
    """Let no file be removed that a process has open, as Windows does not."""
    unlink = os.unlink

    def checked(path: os.PathLike | str, *, dir_fd: int | None = None) -> None:
        where = os.path.abspath(path)
        for link in Path("/proc").glob("[0-9]*/fd/*"):
            try:
                is_this = os.readlink(link) == where
            except OSError:
                continue
            if is_this and dir_fd is None:
                raise PermissionError(13, "another process is using the file", where)
        unlink(path, dir_fd=dir_fd)

    os.unlink = os.remove = checked


def substitutes(system: str) -> dict[str, types.ModuleType]:
    missing = NOT_ON_WINDOWS if system == "win32" else NOT_ON_MACOS
    found = {
        "sys": Other(sys, set(), platform=system),
        "os": Other(os, missing["os"]),
        "signal": Other(signal, missing["signal"]),
    }
    if system == "win32":
        vars(found["os"]).update(name="nt", kill=kill)
        methods = {"get_all_start_methods": lambda: ["spawn"]}
        found["multiprocessing"] = Other(multiprocessing, set(), **methods)
        found["faulthandler"] = Other(faulthandler, missing["faulthandler"])
    else:
        found["ctypes"] = Other(ctypes, set(), c_void_p=CStdout)
    return found


class Finder:
    """Finds the modules of `ddp_src` and gives them an `import` of their own."""

    def __init__(self, system: str) -> None:
        self.system = system
        self.substitutes = substitutes(system)

    def find_spec(self, name, path=None, target=None):
        if not name.startswith("ddp_src."):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        execute = spec.loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            vars(module)["__builtins__"] = vars(builtins) | {"__import__": self.import_}
            execute(module)

        spec.loader.exec_module = exec_module
        return spec

    def import_(self, name, *args, **options):
        if self.system == "win32" and name in MODULES_NOT_ON_WINDOWS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        module = builtins.__import__(name, *args, **options)
        if name == "torch.distributed":
            use_loopback_by_its_name_here()
        return self.substitutes.get(name, module)


def use_loopback_by_its_name_here() -> None:
    """Gloo looks for "lo0", as macOS names it, and here it is "lo"; OTHER_LOOPBACK keeps its name."""
    import torch.distributed as dist

    join = dist.init_process_group
    if join.__name__ == "join_on_lo":
        return

    def join_on_lo(*args, **options):
        os.environ["OTHER_LOOPBACK"] = os.environ.get("GLOO_SOCKET_IFNAME", "")
        if os.environ["OTHER_LOOPBACK"] == "lo0":
            os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        join(*args, **options)

    dist.init_process_group = join_on_lo


if system := os.environ.get("OTHER_SYSTEM"):
    sys.meta_path.insert(0, Finder(system))
    if system == "win32":
        refuse_to_remove_what_is_open()
