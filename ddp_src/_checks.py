"""What a launch refuses before anything starts: each refusal names the value and says what to do."""

from __future__ import annotations

import inspect
import os
import socket
import sys
from collections.abc import Callable
from multiprocessing import get_all_start_methods, process
from numbers import Integral

from ddp_src import _payload
from ddp_src._failures import LaunchRefused
from ddp_src.errors import ConfigError

# multiprocessing hands at most 256 descriptors to a process, and each rank has two; Windows waits for at
# most 63 handles at a time, and each rank has two of these as well.
MOST_RANKS = 31 if sys.platform == "win32" else 100
FILES_PER_RANK = 8  # its pipes, its log, and what multiprocessing opens


def check_launch(
    fn: Callable,
    args: tuple,
    nprocs: int | None,
    backend: str,
    start_method: str,
    timeout: float | None,
    time_limit: float | None,
) -> tuple[int, str]:
    """Refuse what cannot work; return the number of ranks and the backend, where these were left open too."""
    check_place()
    check_call(fn, args, start_method)
    check_seconds("timeout", timeout)
    check_seconds("time_limit", time_limit)
    ranks = number_of_ranks(nprocs)
    chosen = usable_backend(backend, ranks)
    check_loopback()
    check_open_files(ranks)
    return ranks, chosen


def check_place() -> None:
    """Whether this is a process that may launch."""
    if _payload.is_loading():
        raise LaunchRefused(
            "a rank met this call of spawn while it imported the module, and would launch ranks of its own "
            'without end: put the call under `if __name__ == "__main__":`.',
            "rank 导入这个模块时又遇到了这次 spawn 调用，这样会无穷无尽地启动下去："
            '请把它放到 `if __name__ == "__main__":` 之下。',
        )
    if process.current_process().daemon:
        raise LaunchRefused(
            "this is a worker of a Pool or of a DataLoader, which may not start processes: "
            "call spawn in the main program.",
            "这里是 Pool 或 DataLoader 的工作进程，不允许再启动进程：请在主程序里调用 spawn。",
        )


def check_call(fn: Callable, args: tuple, start_method: str) -> None:
    if not callable(fn):
        raise LaunchRefused(
            f"spawn needs a function and got {fn!r}: pass the function itself, without calling it.",
            f"spawn 需要一个函数，收到的却是 {fn!r}：请传函数本身，不要先调用它。",
        )
    _check_that_it_runs_when_called(fn)
    if not isinstance(args, tuple | list):
        raise LaunchRefused(
            f"args is a {type(args).__name__}: it must be a tuple; write one argument as (x,), with a comma.",
            f"args 的类型是 {type(args).__name__}：它必须是元组，只有一个参数时写作 (x,)，逗号不能少。",
        )
    methods = ["auto", *(name for name in ("spawn", "forkserver") if name in get_all_start_methods())]
    if start_method not in methods:
        names = ", ".join(f'"{name}"' for name in methods)
        raise LaunchRefused(
            f"start_method is {start_method!r}: choose one of {names}.",
            f"start_method 是 {start_method!r}：请从 {names} 中选择。",
        )
    try:
        os.getcwd()
    except FileNotFoundError:
        raise LaunchRefused(
            "the working folder has been deleted: change to one that exists with os.chdir.",
            "当前工作目录已被删除：请先用 os.chdir 换到一个存在的目录。",
        ) from None


def _check_that_it_runs_when_called(fn: Callable) -> None:
    name = getattr(fn, "__name__", repr(fn))
    if inspect.iscoroutinefunction(fn):
        raise LaunchRefused(
            f"{name} is defined with async def, and a call alone would not run it: define it with def.",
            f"{name} 是用 async def 定义的，只调用它并不会运行：请改用 def 定义。",
        )
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise LaunchRefused(
            f"{name} contains yield, and a call alone would not run it: return a list of the values.",
            f"{name} 里有 yield，只调用它并不会运行：请改为返回一个列表。",
        )


def check_seconds(name: str, value: float | None) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (number and value > 0):
        raise LaunchRefused(
            f"{name} is {value!r}: it must be a number of seconds above 0, or None for no limit.",
            f"{name} 是 {value!r}：它必须是大于 0 的秒数，不限时则写 None。",
        )


def number_of_ranks(nprocs: int | None) -> int:
    import torch

    if nprocs is None:
        return torch.cuda.device_count() or 2
    if not isinstance(nprocs, Integral) or isinstance(nprocs, bool) or nprocs < 1:
        raise LaunchRefused(
            f"nprocs is {nprocs!r}: it must be a whole number, 1 or more.",
            f"nprocs 是 {nprocs!r}：它必须是不小于 1 的整数。",
        )
    if nprocs > MOST_RANKS:
        raise LaunchRefused(
            f"nprocs is {nprocs}: one machine starts at most {MOST_RANKS} ranks.",
            f"nprocs 是 {nprocs}：一台机器最多启动 {MOST_RANKS} 个 rank。",
        )
    return int(nprocs)


def check_open_files(nprocs: int) -> None:
    """Each rank takes some of this process's descriptors, of which macOS gives 256 by default."""
    held: list[int] = []
    try:
        while len(held) < FILES_PER_RANK * nprocs + 16:
            held.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        raise LaunchRefused(
            f"this process cannot open the files that a launch of {nprocs} needs ({error.strerror}): use "
            "fewer ranks, or raise the limit with `ulimit -n 4096` before Python starts.",
            f"启动 {nprocs} 个 rank 所需的文件无法全部打开（{error.strerror}）：请减少 rank 数，"
            "或在启动 Python 之前用 `ulimit -n 4096` 提高上限。",
        ) from None
    finally:
        for descriptor in held:
            os.close(descriptor)


def usable_backend(backend: str, nprocs: int) -> str:
    from ddp_src.distributed import choose_backend

    try:
        return choose_backend(backend, nprocs)
    except ConfigError as error:
        raise LaunchRefused(error.en, error.zh) from None


def check_loopback() -> None:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5).close()
    except OSError as error:
        reason = error.strerror or error
        raise LaunchRefused(
            f"the ranks cannot talk over 127.0.0.1 ({reason}): turn the loopback interface on, on Linux with "
            "`ip link set lo up`.",
            f"各个 rank 无法通过 127.0.0.1 通信（{reason}）：请启用回环网卡，Linux 上的命令是 "
            "`ip link set lo up`。",
        ) from None


def pack(fn: Callable, args: tuple) -> bytes:
    try:
        return _payload.dumps((fn, args))
    except Exception as error:
        en, zh = _payload.culprit(fn, args)
        raise LaunchRefused(
            f"{en} cannot be sent to the ranks ({error}): create it inside the function.",
            f"{zh} 无法传给各个 rank（{error}）：请在函数里面创建它。",
        ) from None
