"""The start of ranks: processes that begin at `_rank.run` and do not run the caller's script again."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import process
from multiprocessing.process import BaseProcess

from ddp_src._failures import LaunchRefused
from ddp_src._rank import run
from ddp_src._server import let_waiting_threads_sleep, warm_up


def start_ranks(rank_args: tuple, nprocs: int, start_method: str) -> Sequence[BaseProcess]:
    """Start `nprocs` processes that call `run(rank, *rank_args)`."""
    import torch.multiprocessing as mp

    with _starts_here():
        if start_method == "spawn":
            let_waiting_threads_sleep()
            return mp.spawn(run, args=rank_args, nprocs=nprocs, join=False).processes
        warm_up()
        try:
            started = mp.start_processes(run, rank_args, nprocs, join=False, start_method=start_method)
        except (EOFError, ConnectionError):  # ranks that it had started end with their lifeline
            raise LaunchRefused(
                "the warm server ended while it started the ranks, for which memory or the number of "
                "processes may have run out: free some, then launch again.",
                "热启动服务在启动各个 rank 时意外结束，可能是内存或进程数不够：请先腾出一些，再重新启动。",
            ) from None
        return started.processes


_starting = threading.Lock()


@contextmanager
def _starts_here() -> Iterator[None]:
    """Keep multiprocessing from running the caller's script in every rank, main guard or not.

    Nothing needs it there: what the script defines travels by value. And "" in `sys.path` shall mean the
    folder that is current now, which multiprocessing takes for the one at the start of this process.
    """
    main = sys.modules["__main__"]
    with _starting:
        first_folder = process.ORIGINAL_DIR
        hidden = {name: vars(main).pop(name) for name in ("__spec__", "__file__") if name in vars(main)}
        main.__spec__, process.ORIGINAL_DIR = None, os.getcwd()
        try:
            yield
        finally:
            vars(main).update(hidden)
            process.ORIGINAL_DIR = first_folder
