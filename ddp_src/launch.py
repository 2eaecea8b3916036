"""`spawn`: run a function on N ranks from a notebook or a script, and tell the truth about how it went."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import re
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import Pipe
from pathlib import Path
from typing import NoReturn

from ddp_src._checks import (
    check_call,
    check_loopback,
    check_open_files,
    check_place,
    check_seconds,
    number_of_ranks,
    pack,
    usable_backend,
)
from ddp_src._ending import end_all
from ddp_src._failures import LaunchError, LaunchRefused, RankFailed, RanksStuck, TimeLimitReached
from ddp_src._folder import private_folder, remove
from ddp_src._interrupts import Interrupts
from ddp_src._output import Output, say
from ddp_src._rank import Orders
from ddp_src._reports import Failure, Standing
from ddp_src._server import default_start_method, set_too_late, warm_up
from ddp_src._start import start_ranks
from ddp_src._watch import Outcome, Watch

__all__ = ["LaunchError", "LaunchRefused", "RankFailed", "RanksStuck", "TimeLimitReached", "spawn", "warm_up"]


def spawn(
    fn: Callable,
    args: tuple = (),
    nprocs: int | None = None,
    *,
    backend: str = "auto",
    start_method: str = "auto",
    timeout: float | None = 60,
    time_limit: float | None = None,
    debug: bool = False,
    log_dir: str | Path | None = None,
    show: bool = True,
) -> list:
    """Run `fn(rank, *args)` on `nprocs` ranks with the process group joined; return what each returned.

    The call shape is that of `torch.multiprocessing.spawn`, which runs underneath. `fn` and `args` travel
    by value, so `fn` may be defined in a notebook cell, and a tensor in `args` is copied to every rank.

    nprocs: the number of GPUs, or 2 where there is none.
    backend: "auto" is nccl when every rank has a GPU of its own, else gloo on the CPU.
    start_method: "auto" is "forkserver" (warm) on Linux, else "spawn".
    timeout: seconds that a rank may wait inside one collective; None waits for ever.
    time_limit: seconds for the whole launch, None for no limit.
    debug: checks every collective for matching operation, shape and order (torch's level DETAIL).
    log_dir: where `rank<r>.log` is kept; by default a private folder, until this process ends.
    show: print what the ranks print, each line with its rank.

    Raises `LaunchRefused` before anything starts, `RankFailed`, `RanksStuck` or `TimeLimitReached`.
    """
    check_place()
    check_call(fn, args, start_method)
    check_seconds("timeout", timeout)
    check_seconds("time_limit", time_limit)
    nprocs = number_of_ranks(nprocs)
    backend = usable_backend(backend, nprocs)
    check_loopback()
    check_open_files(nprocs)
    too_late = set_too_late() if start_method == "auto" else []
    if start_method == "auto":
        start_method = "spawn" if too_late else default_start_method()
    payload = pack(fn, tuple(args))
    if show:
        _say_once(_what_runs(nprocs, backend, too_late))
    with private_folder() as folder:
        orders = _orders(folder, Path(log_dir or folder), nprocs, backend, timeout, debug)
        _write(payload, orders.payload())
        output = _output(orders, show=show)
        outcome = _run_ranks(orders, output, start_method, time_limit)
        _raise_if_failed(outcome, orders, time_limit)
        results = [_read_result(rank, orders) for rank in range(nprocs)]
        if not log_dir and not output.cut:
            for rank in range(nprocs):
                remove(orders.log(rank))
        return results


def _run_ranks(orders: Orders, output: Output, start_method: str, time_limit: float | None) -> Outcome:
    """Start the ranks, follow them to the end, and leave none behind whatever happens."""
    ours, theirs = zip(*(Pipe() for _ in range(orders.world_size)), strict=True)
    lifelines, held = zip(*(Pipe(duplex=False) for _ in range(orders.world_size)), strict=True)
    processes = []
    with Interrupts() as interrupts:
        try:
            processes = start_ranks((orders, theirs, lifelines), orders.world_size, start_method)
            for end in (*theirs, *lifelines):
                end.close()
            with interrupts.may_come():
                return Watch(processes, ours, orders, output).follow(time_limit)
        except KeyboardInterrupt:
            stopped = KeyboardInterrupt("all ranks were ended · 所有 rank 都已结束")
            stopped._render_traceback_ = lambda: [f"KeyboardInterrupt: {stopped}"]  # all that IPython shows
            raise stopped from None
        finally:
            end_all(processes)
            for end in (*ours, *theirs, *lifelines, *held):
                end.close()
            output.close()


_said: set[str] = set()


def _say_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        say(text)


def _what_runs(nprocs: int, backend: str, too_late: Sequence[str]) -> str:
    ranks = "1 rank" if nprocs == 1 else f"{nprocs} ranks"
    lines = [f"{ranks} · {backend} · {'one GPU each' if backend == 'nccl' else 'CPU'}"]
    if too_late:
        lines += [f"cold start, since torch reads {', '.join(too_late)} only when it is loaded"]
        lines += [f"冷启动：torch 只在加载时读取 {'、'.join(too_late)}"]
    return "\n".join(lines)


def _orders(
    folder: Path, logs: Path, nprocs: int, backend: str, timeout: float | None, debug: bool
) -> Orders:
    from ddp_src.distributed import threads_per_rank

    threads = os.environ.get("OMP_NUM_THREADS", "")
    return Orders(
        folder=str(folder),
        logs=str(logs.absolute()),
        world_size=nprocs,
        backend=backend,
        timeout=timeout,
        debug=debug,
        threads=int(threads) if re.fullmatch("[1-9][0-9]*", threads) else threads_per_rank(nprocs),
        environ=dict(os.environ),
        start_method=multiprocessing.get_start_method(allow_none=True),
    )


def _write(payload: bytes, path: Path) -> None:
    try:
        path.write_bytes(payload)
    except OSError as error:
        size = f"{len(payload) / 1e6:,.1f} MB"
        raise LaunchRefused(
            f"the function and its arguments ({size}) cannot be written to {path.parent} ({error.strerror}): "
            "free some space there, or set TMPDIR to another folder and restart.",
            f"函数和参数（{size}）无法写入 {path.parent}（{error.strerror}）："
            "请在那里腾出空间，或把 TMPDIR 设为别的目录后重新启动。",
        ) from None


def _output(orders: Orders, *, show: bool) -> Output:
    try:
        os.makedirs(orders.logs, exist_ok=True)
        return Output([orders.log(rank) for rank in range(orders.world_size)], show=show)
    except OSError as error:
        raise LaunchRefused(
            f"log_dir {orders.logs} cannot be written ({error.strerror}): choose another folder.",
            f"log_dir {orders.logs} 无法写入（{error.strerror}）：请换一个目录。",
        ) from None


def _raise_if_failed(outcome: Outcome, orders: Orders, time_limit: float | None) -> None:
    if outcome.out_of_time:
        raise TimeLimitReached(outcome.standings, time_limit)
    if outcome.failure is None:
        return
    if outcome.stuck:
        raise RanksStuck(outcome.standings, outcome.failure.waited or orders.timeout)
    _raise_failed(outcome.failure, orders, outcome.standings)


def _raise_failed(failure: Failure, orders: Orders, standings: Sequence[Standing]) -> NoReturn:
    log = orders.log(failure.rank)
    # A full disk must not hide the cause, which it may be itself.
    with contextlib.suppress(OSError), open(log, "a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(failure.traceback)
    raise RankFailed(failure, standings, log) from None


def _read_result(rank: int, orders: Orders) -> object:
    try:
        return pickle.loads(orders.result(rank).read_bytes())
    except Exception as error:
        failure = Failure(
            rank=rank,
            error_type=type(error).__name__,
            message=f"the return value cannot be read here ({error}): "
            "return numbers, strings, tensors, or lists and dicts of them",
            traceback=traceback.format_exc(),
        )
        _raise_failed(failure, orders, [Standing(r, "returned") for r in range(orders.world_size)])
