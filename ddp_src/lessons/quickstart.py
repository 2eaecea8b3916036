"""Chapter 00: the smallest right DDP program, the same on one process, and how a first listing fails."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from ddp_src.data import MNISTDataset, load_digits
from ddp_src.distributed import place_of_this_rank
from ddp_src.model import SimpleModel
from ddp_src.runlog import Step


@dataclass(frozen=True)
class Trained:
    """What a rank brings back: its records, and all its weights as one vector."""

    steps: list[Step]
    weights: Tensor


def train(rank: int, epochs: int = 10) -> Trained:
    """What every rank runs. Two ranks take 128 samples each per step, one rank takes the 256 together."""
    world_size, device = dist.get_world_size(), place_of_this_rank().device
    torch.manual_seed(rank)  # a different seed on every rank, on purpose

    # float64 rounds so finely that a difference to be seen is a mistake, not rounding
    digits = MNISTDataset.from_digits(load_digits(train=True), dtype=torch.float64)
    sampler = DistributedSampler(digits)  # hands each rank its share of the samples
    loader = DataLoader(digits, batch_size=256 // world_size, sampler=sampler)

    model = SimpleModel().to(device, torch.float64)
    if world_size > 1:  # one process alone trains without any DDP, to compare with
        model = DDP(model)  # copies rank 0's weights to every rank
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)

    steps = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)  # another shuffle in every epoch
        for images, labels in loader:
            loss = F.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()  # averages the gradients over all ranks
            optimizer.step()
            steps.append(Step(epoch, len(steps), loss.item(), len(labels)))
    return Trained(steps, torch.cat([p.detach().flatten().cpu() for p in model.parameters()]))


def ask_for_nccl(rank: int) -> None:
    """The second fault of a first listing: the backend for GPUs, where there is none."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # so that a machine with GPUs shows it too
    dist.destroy_process_group()  # the one that `spawn` has joined
    dist.init_process_group(backend="nccl", store=dist.HashStore(), rank=0, world_size=1)


def first_listing(rank: int) -> list[int]:
    """A first listing with its errors mended: it trains and reports every hundredth step.

    Returns the steps at which it printed, one list over all epochs.
    """
    device = place_of_this_rank().device
    digits = MNISTDataset.from_digits(load_digits(train=True))
    loader = DataLoader(digits, batch_size=128, sampler=DistributedSampler(digits))
    model = DDP(SimpleModel().to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    printed = []
    for epoch in range(3):
        for i, (images, labels) in enumerate(loader):
            loss = F.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if (i + 1) % 100 == 0:
                print(f"epoch {epoch + 1}, step {i + 1} of {len(loader)}, loss {loss.item():.4f}")
                printed.append(i + 1)
    return printed
