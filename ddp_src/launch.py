"""`spawn`: run a function on N ranks from a notebook or a script, and tell the truth about how it went."""

from __future__ import annotations

import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import Pipe
from pathlib import Path

from ddp_src import _payload
from ddp_src._failures import LaunchError, LaunchRefused, RankFailed, RanksStuck, TimeLimitReached
from ddp_src._folder import private_folder
from ddp_src._output import Output
from ddp_src._rank import Orders, run
from ddp_src._server import default_start_method, warm_up
from ddp_src._watch import Outcome, Watch, end_all
from ddp_src.errors import ConfigError

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
    nprocs, backend = _checked(fn, nprocs, backend, start_method)
    payload = _pack(fn, tuple(args))
    with private_folder() as folder:
        orders = _orders(folder, Path(log_dir or folder), nprocs, backend, timeout, debug)
        orders.payload().write_bytes(payload)
        output = Output([orders.log(rank) for rank in range(nprocs)], show=show)
        outcome = _run_ranks(orders, output, start_method, time_limit)
        _raise_if_failed(outcome, orders, time_limit)
        return [pickle.loads(orders.result(rank).read_bytes()) for rank in range(nprocs)]


def _run_ranks(orders: Orders, output: Output, start_method: str, time_limit: float | None) -> Outcome:
    """Start the ranks, follow them to the end, and leave none behind whatever happens."""
    ours, theirs = zip(*(Pipe() for _ in range(orders.world_size)), strict=True)
    lifelines, held = zip(*(Pipe(duplex=False) for _ in range(orders.world_size)), strict=True)
    processes = []
    try:
        processes = _start((orders, theirs, lifelines), orders.world_size, start_method)
        for end in (*theirs, *lifelines):
            end.close()
        return Watch(processes, ours, orders, output).follow(time_limit)
    finally:
        end_all(processes)
        output.close()
        for end in (*ours, *theirs, *lifelines, *held):
            end.close()


def _start(rank_args: tuple, nprocs: int, start_method: str) -> list:
    import torch.multiprocessing as mp

    if start_method == "auto":
        start_method = default_start_method()
    with _main_is_not_imported_again():
        if start_method == "spawn":
            return mp.spawn(run, args=rank_args, nprocs=nprocs, join=False).processes
        warm_up()
        return mp.start_processes(run, rank_args, nprocs, join=False, start_method=start_method).processes


_starting = threading.Lock()


@contextmanager
def _main_is_not_imported_again() -> Iterator[None]:
    """Keep multiprocessing from running the caller's script in every rank, main guard or not.

    Nothing needs it there: what the script defines travels by value.
    """
    main = sys.modules["__main__"]
    with _starting:
        hidden = {name: vars(main).pop(name) for name in ("__spec__", "__file__") if name in vars(main)}
        main.__spec__ = None
        try:
            yield
        finally:
            vars(main).update(hidden)


def _checked(fn: Callable, nprocs: int | None, backend: str, start_method: str) -> tuple[int, str]:
    """Refuse what cannot work; return the number of ranks and the backend."""
    import torch

    from ddp_src.distributed import choose_backend

    if not callable(fn):
        raise LaunchRefused(
            f"spawn needs a function and got {fn!r}: pass the function itself, without calling it.",
            f"spawn 需要一个函数，收到的却是 {fn!r}：请传函数本身，不要先调用它。",
        )
    if nprocs is None:
        nprocs = torch.cuda.device_count() or 2
    if not isinstance(nprocs, int) or isinstance(nprocs, bool) or nprocs < 1:
        raise LaunchRefused(
            f"nprocs is {nprocs!r}: it must be a whole number, 1 or more.",
            f"nprocs 是 {nprocs!r}：它必须是不小于 1 的整数。",
        )
    if start_method not in ("auto", "spawn", "forkserver"):
        raise LaunchRefused(
            f'start_method is {start_method!r}: choose "auto", "spawn" or "forkserver".',
            f'start_method 是 {start_method!r}：请选择 "auto"、"spawn" 或 "forkserver"。',
        )
    try:
        chosen = choose_backend(backend, nprocs)
    except ConfigError as error:
        raise LaunchRefused(error.en, error.zh) from None
    _say_once(f"{nprocs} ranks · {chosen} · {'one GPU each' if chosen == 'nccl' else 'CPU'}")
    return nprocs, chosen


_said: set[str] = set()


def _say_once(line: str) -> None:
    if line not in _said:
        _said.add(line)
        print(line, flush=True)


def _pack(fn: Callable, args: tuple) -> bytes:
    try:
        return _payload.dumps((fn, args))
    except Exception as error:
        culprit = _payload.culprit(fn, args)
        raise LaunchRefused(
            f"{culprit} cannot be sent to the ranks ({error}): create it inside the function.",
            f"{culprit} 无法传给各个 rank（{error}）：请在函数里面创建它。",
        ) from None


def _orders(
    folder: Path, logs: Path, nprocs: int, backend: str, timeout: float | None, debug: bool
) -> Orders:
    from ddp_src.distributed import threads_per_rank

    logs.mkdir(parents=True, exist_ok=True)
    return Orders(
        folder=str(folder),
        logs=str(logs.absolute()),
        world_size=nprocs,
        backend=backend,
        timeout=timeout,
        debug=debug,
        threads=int(os.environ.get("OMP_NUM_THREADS") or threads_per_rank(nprocs)),
        environ=dict(os.environ),
    )


def _raise_if_failed(outcome: Outcome, orders: Orders, time_limit: float | None) -> None:
    if outcome.out_of_time:
        raise TimeLimitReached(outcome.standings, time_limit)
    if outcome.failure is None:
        return
    if outcome.stuck:
        raise RanksStuck(outcome.standings, orders.timeout)
    log = orders.log(outcome.failure.rank)
    with open(log, "a", encoding="utf-8") as file:
        file.write(outcome.failure.traceback)
    raise RankFailed(outcome.failure, outcome.standings, log)
