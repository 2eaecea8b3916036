"""Chapter 02: an argument that ranks share, a launcher of a dozen lines, three ways to meet, and to fail."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from ddp_src import sources
from ddp_src.distributed import place_of_this_rank


def touch(rank: int, seen: list, total: Tensor) -> None:
    """Change both arguments in place, on every rank."""
    seen.append(rank)
    total.add_(1)
    print(f"my list is {seen}")


def introduce(rank: int) -> None:
    """Print what the launcher has told this process, and what it computes on."""
    told = [f"{name}={os.environ[name]}" for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")]
    print(*told, "on", place_of_this_rank().device)


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
    sys.stdout.flush()
    os._exit(0)  # at once: torch's own end can abort


def meet(rank: int) -> dict[str, float]:
    """Form a group three times; only how the ranks find one another differs. Returns each one's sum."""
    ranks = dist.get_world_size()
    [folder, *ports] = said_by_rank_0([tempfile.mkdtemp(), free_port(), free_port()])
    dist.destroy_process_group()  # the one that the launcher has made
    sums = {}

    store = dist.FileStore(f"{folder}/store", ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    del store  # the group keeps it
    sums["file"] = sum_of_ones()
    dist.destroy_process_group()

    address = f"tcp://127.0.0.1:{ports[0]}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=ranks)
    sums["TCP"] = sum_of_ones()
    dist.destroy_process_group()

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(ports[1]))  # beside RANK and WORLD_SIZE
    dist.init_process_group("gloo")  # reads all four
    sums["environment"] = sum_of_ones()
    if rank == 0:
        shutil.rmtree(folder)  # nobody uses it any more: all ranks are in the third group
    return sums


def sum_of_ones() -> float:
    """Every rank gives 1: only in a group that is complete is the sum the number of ranks."""
    one = torch.ones(1)
    dist.all_reduce(one)
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


def read_own(reader: int, path: Path, gate, answers) -> None:
    with np.load(path) as digits:
        read_digits(reader, digits, gate, answers)


def fork_readers(target: Callable, digits: object) -> list[str]:
    """Fork two readers that run `target` on `digits`, and return what each of them got."""
    fork = multiprocessing.get_context("fork")
    gate, answers = fork.Barrier(2), fork.SimpleQueue()
    readers = [fork.Process(target=target, args=(number, digits, gate, answers)) for number in (0, 1)]
    for reader in readers:
        reader.start()
    got = dict(answers.get() for _ in readers)
    for reader in readers:
        reader.join()
    return [got[0], got[1]]


def open_then_fork(rank: int) -> list[str]:
    """One process opens the file, then forks the readers."""
    with np.load(sources.EMBEDDED) as digits:
        return fork_readers(read_digits, digits)


def fork_then_open(rank: int) -> list[str]:
    """Each reader opens the file for itself."""
    return fork_readers(read_own, sources.EMBEDDED)


def leave_early(rank: int) -> None:
    """Rank 1 finds nothing to do and exits, without an error."""
    if rank == 1:
        sys.exit()
    dist.all_reduce(torch.ones(1))


def work_on(rank: int) -> None:
    """Never come to an end."""
    while True:
        time.sleep(1)
