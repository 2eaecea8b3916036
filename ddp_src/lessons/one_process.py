"""Chapter 01: where one process spends a training step, and when parts of a batch make up the whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import median

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from ddp_src.data import MNISTDataset, load_digits
from ddp_src.distributed import place_of_this_rank
from ddp_src.model import SimpleModel, build_model
from ddp_src.runlog import Step

UNIT = 72  # a hidden unit of `fresh_model` that each of the digits 0 to 7 changes visibly


class WorkClock:
    """Seconds between laps in which this thread was at work: turns of other programs do not count.

    A GPU works on its own, so there every second counts until it has nothing left to do. So it does on
    systems that measure a thread's work too coarsely.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        is_coarse = time.get_clock_info("thread_time").resolution > 1e-5
        self._read = time.perf_counter if self._on_gpu or is_coarse else time.thread_time
        self._last = self._read()

    def lap(self) -> float:
        if self._on_gpu:
            torch.cuda.synchronize()
        now = self._read()
        seconds, self._last = now - self._last, now
        return seconds


def timed_steps(loader: DataLoader, model: nn.Module, device: torch.device) -> Iterator[Step]:
    """The training loop. Each `next` trains one step and records the seconds of its four phases."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    clock = WorkClock(device)
    for number, (images, labels) in enumerate(_for_ever(loader)):
        images, labels = images.to(device), labels.to(device)
        data = clock.lap()

        loss = F.cross_entropy(model(images), labels)
        forward = clock.lap()

        optimizer.zero_grad()
        loss.backward()
        backward = clock.lap()

        optimizer.step()
        update = clock.lap()

        yield Step(0, number, loss.item(), len(labels), data, forward, backward, update)
        clock.lap()  # what goes on between two steps belongs to neither


def load_by_sample(digits: MNISTDataset, batch_size: int = 128) -> DataLoader:
    """Ask the data set for one sample after another, then stack them: what a DataLoader does by itself."""
    return DataLoader(digits, batch_size, shuffle=True, drop_last=True)


def load_by_batch(digits: MNISTDataset, batch_size: int = 128) -> DataLoader:
    """Ask the data set once per batch, with a list of indices."""
    indices = BatchSampler(RandomSampler(digits), batch_size, drop_last=True)
    return DataLoader(digits, sampler=indices, batch_size=None)


def time_feeds(rank: int, model: str = "simple", steps: int = 50) -> dict[str, Step]:
    """The typical step for each way to feed the model, from `steps` steps of each in turn."""
    from torchvision.transforms import ToTensor

    digits = load_digits(train=True)
    loaders = {
        "PIL per sample": load_by_sample(MNISTDataset.from_digits(digits, ToTensor())),
        "tensor per sample": load_by_sample(MNISTDataset.from_digits(digits)),
        "tensor per batch": load_by_batch(MNISTDataset.from_digits(digits)),
    }
    return in_turn(loaders, steps, model)


def time_batch_sizes(rank: int, sizes: Sequence[int], steps: int = 80) -> dict[int, Step]:
    """The same for several batch sizes, each fed as whole batches."""
    digits = MNISTDataset.from_digits(load_digits(train=True))
    return in_turn({size: load_by_batch(digits, size) for size in sizes}, steps)


def in_turn(loaders: dict, steps: int, model: str = "simple") -> dict:
    """One step with each loader after the other, so that a busy machine slows all of them alike."""
    torch.set_num_threads(1)  # one process, one core
    device = place_of_this_rank().device
    streams = [timed_steps(loader, build_model(model).to(device), device) for loader in loaders.values()]
    for stream in streams:
        next(stream)  # the first step allocates memory: not counted
    rounds = [[next(stream) for stream in streams] for _ in range(steps)]
    return {name: typical_step(timed) for name, timed in zip(loaders, zip(*rounds, strict=True), strict=True)}


def typical_step(steps: Sequence[Step]) -> Step:
    """The last of `steps`, with the median seconds of each phase."""
    phases = ("data", "forward", "backward", "update")
    return replace(steps[-1], **{phase: median(getattr(step, phase) for step in steps) for phase in phases})


def few_digits(count: int) -> tuple[Tensor, Tensor]:
    """One digit of each kind, from 0 to `count` − 1: [count, 1, 28, 28] in float64, and their labels."""
    digits = MNISTDataset.from_digits(load_digits(train=True), dtype=torch.float64)
    kinds = digits.targets.tolist()
    return digits[[kinds.index(kind) for kind in range(count)]]


def fresh_model() -> SimpleModel:
    """The same weights each time, in float64, whose rounding stays far below 1e-12."""
    torch.manual_seed(3)
    return SimpleModel().double()


def gradient(images: Tensor, labels: Tensor) -> Tensor:
    """The gradient of the mean loss over these samples, all 79,510 numbers as one vector."""
    model = fresh_model().to(images.dtype)
    F.cross_entropy(model(images), labels).backward()
    return _flat_gradient(model)


def picture(gradient: Tensor) -> Tensor:
    """The part of it that belongs to the 784 weights from the pixels into one hidden unit, [28, 28]."""
    return gradient[UNIT * 784 : (UNIT + 1) * 784].view(28, 28)


def mean_loss(scores: Tensor, labels: Tensor, total: int) -> Tensor:
    return F.cross_entropy(scores, labels)


def summed_loss(scores: Tensor, labels: Tensor, total: int) -> Tensor:
    return F.cross_entropy(scores, labels, reduction="sum")


def loss_times_ranks(scores: Tensor, labels: Tensor, total: int) -> Tensor:
    return F.cross_entropy(scores, labels) * dist.get_world_size()


def weighed_by_count(scores: Tensor, labels: Tensor, total: int) -> Tensor:
    return F.cross_entropy(scores, labels, reduction="sum") * dist.get_world_size() / total


def own_and_joined(rank: int, counts: Sequence[int], loss: Callable) -> list[Tensor]:
    """This rank's gradient without DDP and with it, when rank r has the next `counts[r]` digits."""
    total = sum(counts)
    images, labels = (part.split(list(counts))[rank] for part in few_digits(total))
    gradients = []
    for model in (fresh_model(), DDP(fresh_model())):
        loss(model(images), labels, total).backward()
        gradients.append(_flat_gradient(model))
    return gradients


def size_of_update(optimizer_type: type[torch.optim.Optimizer], factor: float) -> float:
    """How far one update moves the weights when the gradient of 8 digits is `factor` times itself."""
    model = fresh_model()
    optimizer = optimizer_type(model.parameters(), lr=0.001)
    images, labels = few_digits(8)
    (factor * F.cross_entropy(model(images), labels)).backward()
    optimizer.step()
    moved = zip(model.parameters(), fresh_model().parameters(), strict=True)
    return torch.cat([(new - old).detach().flatten() for new, old in moved]).norm().item()


def _flat_gradient(model: nn.Module) -> Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def _for_ever(loader: DataLoader) -> Iterator[list[Tensor]]:
    while True:
        yield from loader
