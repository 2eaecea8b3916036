"""One rank's life: join the process group, pick the device, agree with the others, leave cleanly."""

from __future__ import annotations

import gc
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import nn

from ddp_src.errors import ConfigError, UserError

T = TypeVar("T")

LAUNCHER_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
BACKENDS = ("auto", "gloo", "nccl")


@dataclass(frozen=True)
class Place:
    """Where this process stands: its rank of `world_size`, and the device it computes on."""

    rank: int
    local_rank: int
    world_size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        return self.rank == 0


@contextmanager
def process_group(backend: str = "auto", *, timeout: float = 600) -> Iterator[Place]:
    """Join the process group that the launcher describes, and leave it at the end.

    Under `spawn` the group is joined already and left by the launcher; under torchrun it is joined from
    the environment; a process started alone needs none. `timeout` (seconds) is how long a collective
    may wait. Raises `ConfigError` when only a part of the launcher's variables is set.
    """
    if dist.is_initialized():
        yield place_of_this_rank()
        return
    if not _started_by_launcher():
        set_threads(1)
        yield place_of_this_rank()
        return
    local_ranks = _number("LOCAL_WORLD_SIZE" if "LOCAL_WORLD_SIZE" in os.environ else "WORLD_SIZE")
    set_threads(local_ranks)
    chosen = choose_backend(backend, local_ranks)
    if chosen == "nccl":
        torch.cuda.set_device(_number("LOCAL_RANK"))
    dist.init_process_group(chosen, timeout=timedelta(seconds=timeout))
    try:
        yield place_of_this_rank()
    finally:
        leave()


def leave() -> None:
    """Leave the process group. Drop your own references to the DDP model first.

    A DDP object that outlives its group can abort the process at exit, hence the collection.
    """
    gc.collect()
    if dist.is_initialized():
        dist.destroy_process_group()


def place_of_this_rank() -> Place:
    """Rank, local rank and device of this process, from the group and the launcher's environment."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    world_size = dist.get_world_size() if dist.is_initialized() else 1
    local_rank = int(os.environ.get("LOCAL_RANK", 0)) if dist.is_initialized() else 0
    on_gpu = dist.get_backend() == "nccl" if dist.is_initialized() else torch.cuda.is_available()
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    return Place(rank=rank, local_rank=local_rank, world_size=world_size, device=device)


def _started_by_launcher() -> bool:
    found = [name for name in LAUNCHER_VARIABLES[:3] if name in os.environ]
    if not found:
        return False
    missing = [name for name in LAUNCHER_VARIABLES if name not in os.environ]
    if missing:
        names = ", ".join(missing)
        raise ConfigError(
            f"{', '.join(found)} is set but {names} is not: start the program with "
            "`torchrun --nproc-per-node 2 -m ddp_src.train`, which sets all of them.",
            f"设置了 {', '.join(found)}，却没有 {names}：请用 "
            "`torchrun --nproc-per-node 2 -m ddp_src.train` 启动，它会把这些变量全部设好。",
        )
    if _number("RANK") >= _number("WORLD_SIZE"):
        rank, world_size = os.environ["RANK"], os.environ["WORLD_SIZE"]
        raise ConfigError(
            f"RANK is {rank} and WORLD_SIZE is {world_size}: ranks are counted from 0, "
            "so RANK must be smaller.",
            f"RANK 是 {rank}，而 WORLD_SIZE 是 {world_size}：rank 从 0 数起，必须小于 WORLD_SIZE。",
        )
    return True


def _number(name: str) -> int:
    """A variable that the launcher sets; raises `ConfigError` where it is no whole number from 0 up."""
    text = os.environ[name]
    if not re.fullmatch("[0-9]+", text):
        raise ConfigError(
            f"{name} is {text!r}: it must be a whole number; a launcher such as torchrun sets it.",
            f"{name} 是 {text!r}：它必须是整数，由 torchrun 这样的启动器设置。",
        )
    return int(text)


def choose_backend(backend: str, ranks_here: int) -> str:
    """Turn "auto" into NCCL when every rank on this machine has a GPU of its own, else Gloo.

    Raises `ConfigError` for a backend that is unknown, not built in, or short of GPUs.
    """
    gpus = torch.cuda.device_count()
    if backend == "auto":
        return "nccl" if gpus >= ranks_here and dist.is_nccl_available() else "gloo"
    if backend not in BACKENDS:
        raise ConfigError(
            f"there is no backend {backend!r}: choose one of {', '.join(BACKENDS)}.",
            f"没有名为 {backend!r} 的后端：请从 {', '.join(BACKENDS)} 中选择。",
        )
    if backend == "nccl" and gpus < ranks_here:
        raise ConfigError(
            f"nccl needs a GPU for each of the {ranks_here} ranks and this machine has {gpus}: "
            "use fewer ranks, or backend gloo, which runs on the CPU.",
            f"nccl 要求每个 rank 独占一块 GPU：共 {ranks_here} 个 rank，而这台机器有 {gpus} 块 GPU："
            "请减少 rank 数，或改用在 CPU 上运行的 gloo。",
        )
    if backend == "nccl" and not dist.is_nccl_available():
        raise ConfigError(
            "this build of torch has no nccl: use backend gloo, or install a CUDA build.",
            "这个 torch 版本没有编入 nccl：请改用 gloo，或安装 CUDA 版的 torch。",
        )
    return backend


def usable_cores() -> int:
    """CPU cores this process may use, by affinity and cgroup quota, at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, _cgroup_quota(cores)))


def _cgroup_quota(default: int) -> int:
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return default if quota == "max" else int(quota) // int(period)
    except (OSError, ValueError):
        return default


def threads_per_rank(ranks_here: int) -> int:
    """Threads each rank computes with, so that the ranks of one machine share its cores."""
    return max(1, usable_cores() // ranks_here)


def set_threads(ranks_here: int) -> None:
    """Give this rank its share of the cores, unless the user set OMP_NUM_THREADS."""
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(threads_per_rank(ranks_here))


def sum_over_ranks(values: Sequence[float], device: torch.device) -> list[float]:
    """Add up each of `values` over all ranks, in float64; every rank gets the sums."""
    if not dist.is_initialized():
        return list(values)
    total = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(total)
    return total.tolist()


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside a DDP wrapper, or the model itself."""
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model


def digest(model: nn.Module) -> str:
    """SHA-1 over the bytes of all parameters: equal digests mean bit-equal weights."""
    sha = hashlib.sha1()
    for parameter in unwrap(model).parameters():
        sha.update(parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return sha.hexdigest()


def same_on_all_ranks(text: str) -> bool:
    """Whether every rank holds the same `text`; all ranks must call it and all get the answer."""
    if not dist.is_initialized():
        return True
    texts: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(texts, text)
    return len(set(texts)) == 1


def settle_buckets(model: nn.Module, images: torch.Tensor) -> None:
    """Let DDP arrange its gradient buckets for good before the first real step.

    After its first backward pass DDP rebuilds its buckets in the order in which gradients became ready,
    and with 3 or more ranks another order adds up in another order. A resumed run would then round
    differently in its first step, so every run begins with two passes over `images` that leave no trace:
    parameters, buffers and torch's random generators are as before, and no parameter has a gradient.
    """
    if not isinstance(model, nn.parallel.DistributedDataParallel):
        return
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    devices = [images.device] if images.is_cuda else []
    with torch.random.fork_rng(devices):
        for _ in range(2):
            model(images).sum().backward()
    for parameter in model.parameters():
        parameter.grad = None
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            buffer.copy_(buffers[name])


def run_on_main(fn: Callable[[], T]) -> T:
    """Run `fn` on rank 0 alone; every rank gets its result, or the `UserError` that it raised."""
    if not dist.is_initialized():
        return fn()
    answer: list = [None]
    if dist.get_rank() == 0:
        try:
            answer = [fn()]
        except UserError as error:
            answer = [error]
    dist.broadcast_object_list(answer, src=0)
    if isinstance(answer[0], UserError):
        raise answer[0]
    return answer[0]
