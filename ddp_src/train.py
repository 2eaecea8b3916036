"""Train a digit classifier with DistributedDataParallel.

    python -m ddp_src.train                          on all local GPUs, or on 2 CPU ranks
    python -m ddp_src.train --nproc 1                alone: the same program without a process group
    torchrun --nproc-per-node 2 -m ddp_src.train     under torchrun, on one machine or several

To make a program of your own from it, keep `train` and `evaluate`, and change what they build.
"""

from __future__ import annotations

if __name__ == "__main__":  # the ranks' server imports torch while this process does
    from ddp_src._server import warm_up

    warm_up()

import sys
from collections.abc import Iterator

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from ddp_src.checkpoint import load_checkpoint, save_checkpoint
from ddp_src.config import Config
from ddp_src.data import MNISTDataset, batches, fetch_once, load_digits, test_loader, train_loader
from ddp_src.distributed import (
    Place,
    digest,
    process_group,
    same_on_all_ranks,
    settle_buckets,
    sum_over_ranks,
    unwrap,
)
from ddp_src.errors import ReplicasDiffer
from ddp_src.model import build_model
from ddp_src.recorder import History, Recorder, Stopwatch
from ddp_src.runlog import Epoch, RunLogWriter, Step


def train_on_rank(rank: int, config: Config, resume: bool = False) -> History:
    """`train` in the form that `spawn` calls; torchrun and a process alone use it too."""
    with process_group(config.backend) as place:
        return train(config, place, resume=resume)


def train(config: Config, place: Place, *, resume: bool = False) -> History:
    """Train one model on all ranks of `place` and return what this rank recorded.

    Raises `DataError` for unusable data, `CheckpointError` when `config.out` cannot be written, and
    `ReplicasDiffer` if the ranks do not hold bit-equal parameters at the end.
    """
    torch.manual_seed(config.seed + place.rank)  # dropout differs by rank; DDP copies rank 0's weights
    dtype = getattr(torch, config.dtype)
    train_set, test_set = _datasets(config, dtype)
    loader = train_loader(
        train_set,
        batch_size=config.batch_size,
        rank=place.rank,
        world_size=place.world_size,
        seed=config.seed,
    )
    tests = test_loader(test_set, batch_size=1000, rank=place.rank, world_size=place.world_size)

    model = build_model(config.model).to(place.device, dtype)
    if dist.is_initialized():
        model = DDP(model, device_ids=[place.device.index] if place.device.type == "cuda" else None)
    optimizer = torch.optim.Adam(model.parameters(), lr=config.lr)
    settle_buckets(model, train_set[[0, 0]][0].to(place.device))
    done = load_checkpoint(config.out, model=model, optimizer=optimizer) if resume else 0

    with _recorder(config, place, done=done, total=config.epochs * len(loader)) as recorder:
        while done < config.epochs * len(loader):
            epoch, start = divmod(done, len(loader))
            for step in _train_epoch(model, optimizer, loader, place.device, epoch=epoch, start=start):
                recorder.add(step)
                done = step.step + 1
                if _is_checkpoint_due(config, done, len(loader)):
                    save_checkpoint(config.out, model=model, optimizer=optimizer, step=done)
            recorder.add(evaluate(model, tests, place.device, epoch=epoch, step=done))
            if config.out:
                save_checkpoint(config.out, model=model, optimizer=optimizer, step=done)
    history = recorder.history
    history.digest = digest(model)
    if not same_on_all_ranks(history.digest):
        raise ReplicasDiffer(
            "the ranks hold different parameters: some gradient was not averaged over all of them.",
            "各个 rank 的参数不一样：有的梯度没有在所有 rank 之间求平均。",
        )
    return history


def _train_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader,
    device: torch.device,
    *,
    epoch: int,
    start: int,
) -> Iterator[Step]:
    """Train on the batches of one epoch from number `start` on, and time the phases of each step."""
    model.train()
    clock = Stopwatch(device)
    for index, (images, labels) in enumerate(batches(loader, epoch=epoch, start=start), start):
        images, labels = images.to(device), labels.to(device)
        data_seconds = clock.lap()
        loss = F.cross_entropy(model(images), labels)
        forward_seconds = clock.lap()
        optimizer.zero_grad()
        loss.backward()  # the all-reduce of the gradients happens in here
        backward_seconds = clock.lap()
        optimizer.step()
        yield Step(
            epoch=epoch,
            step=epoch * len(loader) + index,
            loss=loss.item(),
            samples=len(labels),
            data=data_seconds,
            forward=forward_seconds,
            backward=backward_seconds,
            update=clock.lap(),
        )
        clock.lap()


def evaluate(model: nn.Module, loader: DataLoader, device: torch.device, *, epoch: int, step: int) -> Epoch:
    """Accuracy and mean loss over the whole test set, each sample counted once; the same on all ranks.

    The ranks add up sums and counts, so their shares need not be equal. The model inside DDP is used:
    the wrapper's forward may communicate, and ranks can have different numbers of batches here.
    """
    inner = unwrap(model)
    inner.eval()
    correct = loss = samples = 0.0
    with torch.no_grad():
        for images, labels in loader:
            scores = inner(images.to(device))
            labels = labels.to(device)
            correct += (scores.argmax(1) == labels).sum().item()
            loss += F.cross_entropy(scores, labels, reduction="sum").item()
            samples += len(labels)
    correct, loss, samples = sum_over_ranks([correct, loss, samples], device)
    return Epoch(
        epoch=epoch, step=step, accuracy=correct / samples, loss=loss / samples, samples=int(samples)
    )


def _datasets(config: Config, dtype: torch.dtype) -> tuple[MNISTDataset, MNISTDataset]:
    fetch_once(config.data)
    train, test = (load_digits(config.data, train=which) for which in (True, False))
    return MNISTDataset.from_digits(train, dtype=dtype), MNISTDataset.from_digits(test, dtype=dtype)


def _recorder(config: Config, place: Place, *, done: int, total: int) -> Recorder:
    log = RunLogWriter(config.out, place.rank, keep_steps=done) if config.out else None
    return Recorder(log, done=done, total=total, progress=config.progress and place.is_main)


def _is_checkpoint_due(config: Config, done: int, steps_per_epoch: int) -> bool:
    """After every `checkpoint_every` steps; at the end of an epoch it is saved anyway, once evaluated."""
    every = config.checkpoint_every
    return bool(config.out and every and done % every == 0 and done % steps_per_epoch)


if __name__ == "__main__":
    from ddp_src.cli import main

    sys.exit(main())
