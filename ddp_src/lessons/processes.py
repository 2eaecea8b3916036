"""Chapter 02: ranks that share an argument, a launcher of a dozen lines, three ways to meet, three to fail."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import re
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from ddp_src import sources
from ddp_src.distributed import place_of_this_rank
from ddp_src.start_methods import childrens_output


def touch(rank: int, seen: list, total: Tensor) -> None:
    """Change both arguments in place, on every rank."""
    seen.append(rank)
    total.add_(1)
    print(f"my list is {seen}")


def introduce(rank: int) -> None:
    """Say where this rank stands. RANK, LOCAL_RANK and WORLD_SIZE are in its environment."""
    place = place_of_this_rank()
    print(f"local rank {place.local_rank}, {place.world_size} ranks in all, computing on {place.device}")


def launch(fn: Callable, nprocs: int) -> list:
    """`spawn` in a dozen lines: start the ranks, let them meet, and fetch what they return."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run_rank, args=(fn, nprocs, folder), nprocs=nprocs)
        return [pickle.loads(Path(folder, f"result{rank}").read_bytes()) for rank in range(nprocs)]


def run_rank(rank: int, fn: Callable, nprocs: int, folder: str) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(nprocs))
    torch.set_num_threads(max(1, os.cpu_count() // nprocs))  # else the ranks fight for the cores
    store = dist.FileStore(f"{folder}/store", nprocs)  # the ranks find one another through this file
    dist.init_process_group("gloo", store=store, rank=rank, world_size=nprocs)
    result = fn(rank)
    Path(folder, f"result{rank}").write_bytes(pickle.dumps(result))
    gc.collect()  # what is left of a DDP model goes before its group
    dist.destroy_process_group()
    os._exit(0)  # at once, without what Python and torch do at their end


def meet(rank: int) -> dict[str, float]:
    """Form a group three times; only how the ranks find one another differs. Returns each one's sum."""
    ranks = dist.get_world_size()
    [folder, *ports] = said_by_rank_0([tempfile.mkdtemp(), free_port(), free_port()])
    dist.destroy_process_group()  # the one that `spawn` has made
    sums = {}

    store = dist.FileStore(f"{folder}/store", ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    sums["file"] = sum_of_ranks()

    address = f"tcp://127.0.0.1:{ports[0]}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=ranks)
    sums["TCP"] = sum_of_ranks()

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(ports[1]))  # with RANK and WORLD_SIZE
    dist.init_process_group("gloo")  # reads all four
    sums["environment"] = sum_of_ranks()
    return sums


def sum_of_ranks() -> float:
    """Add up 1 on every rank: only a group that is complete gets it right. Then leave that group."""
    one = torch.ones(1)
    dist.all_reduce(one)
    dist.destroy_process_group()
    return one.item()


def said_by_rank_0(values: list) -> list:
    dist.broadcast_object_list(values, src=0)
    return values


def free_port() -> int:
    """A port that was free a moment ago. Another program may take it before it is used."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def read_digits(reader: int, digits: np.lib.npyio.NpzFile, gate, answers) -> None:
    gate.wait()  # both begin at once
    try:
        answers.put((reader, f"{len(digits['images']):,} images"))
    except Exception as error:  # which one it is differs from try to try
        answers.put((reader, f"{type(error).__name__}: {error}"))


def open_then_fork(rank: int, *, tries: int = 3) -> list[list[str]]:
    """One process opens the file and forks two readers. Returns what each of them got, try by try."""
    fork = multiprocessing.get_context("fork")
    tried = []
    for _ in range(tries):
        gate, answers = fork.Barrier(2), fork.SimpleQueue()
        with np.load(sources.EMBEDDED) as digits:
            readers = [fork.Process(target=read_digits, args=(r, digits, gate, answers)) for r in (0, 1)]
            for reader in readers:
                reader.start()
            got = dict(answers.get() for _ in readers)
            for reader in readers:
                reader.join()
        tried.append([got[0], got[1]])
    return tried


def leave_early(rank: int) -> None:
    """Rank 1 finds nothing to do and exits, without an error."""
    if rank == 1:
        sys.exit()
    dist.all_reduce(torch.ones(1))


@contextmanager
def terminal() -> Iterator[None]:
    """Show what processes started in the block write by themselves, each line after `terminal |`."""
    lines: list[str] = []
    try:
        with childrens_output() as lines:
            yield
    finally:
        for line in lines:
            print("terminal |", re.sub(r'File ".*/(?=[^/]+/[^/]+\.py")', 'File "…/', line))
