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

from ddp_src._checks import check_launch, pack
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
    timeout, time_limit: seconds for a wait inside one collective, and for the whole launch; None: no limit.
    debug: checks every collective for matching operation, shape and order (torch's level DETAIL).
    log_dir: where `rank<r>.log` is kept; by default a private folder, until this process ends.
    show: print what the ranks print, each line with its rank.

    Raises `LaunchRefused` before anything starts, `RankFailed`, `RanksStuck` or `TimeLimitReached`.
    """
    nprocs, backend = check_launch(fn, args, nprocs, backend, start_method, timeout, time_limit)
    payload = pack(fn, tuple(args))
    start_method = _choose_and_say(nprocs, backend, start_method, show=show)
    with private_folder() as folder:
        orders = _orders(folder, Path(log_dir or folder), nprocs, backend, timeout, debug)
        _write(payload, orders.payload())
        output = _output(orders, show=show)
        _raise_if_failed(_run_ranks(orders, output, start_method, time_limit), orders, time_limit)
        return _results(orders, keep_logs=bool(log_dir) or output.cut)


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


def _choose_and_say(nprocs: int, backend: str, start_method: str, *, show: bool) -> str:
    """Choose the start method where it was left open; say once what runs here, and why if it starts cold."""
    ranks = "1 rank" if nprocs == 1 else f"{nprocs} ranks"
    lines = [f"{ranks} · {backend} · {'one GPU each' if backend == 'nccl' else 'CPU'}"]
    if start_method == "auto":
        start_method, too_late = default_start_method(), set_too_late()
        if too_late:
            start_method = "spawn"
            lines += [f"cold start, since torch reads {', '.join(too_late)} only when it is loaded"]
            lines += [f"冷启动：torch 只在加载时读取 {'、'.join(too_late)}"]
    if show:
        _say_once("\n".join(lines))
    return start_method


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


def _results(orders: Orders, *, keep_logs: bool) -> list:
    results = [_read_result(rank, orders) for rank in range(orders.world_size)]
    if not keep_logs:
        for rank in range(orders.world_size):
            remove(orders.log(rank))
    return results


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
