"""Chapter 05: ranks that drift apart without a sync, and five versions of DDP against one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from ddp_src.data import MNISTDataset, load_digits
from ddp_src.distributed import place_of_this_rank
from ddp_src.model import SimpleModel
from ddp_src.own_ddp import VERSIONS, Bucketed, NoSync, Overlapped
from ddp_src.runlog import Step


@dataclass(frozen=True)
class Trained:
    """What a rank brings back.

    apart: ‖w − w₀‖, this rank's weights against rank 0's, before the first step and after each.
    accuracy: of this rank's replica on the 1,000 test digits, 0 to 1.
    """

    steps: list[Step]
    apart: list[float]
    accuracy: float


def train(rank: int, wrap: Callable[[nn.Module], NoSync], epochs: int = 10) -> Trained:
    """What every rank runs: chapter 00's training, with `wrap` in place of DDP."""
    device = place_of_this_rank().device
    torch.manual_seed(rank)  # a different seed on every rank, on purpose
    digits = MNISTDataset.from_digits(load_digits(train=True))
    sampler = DistributedSampler(digits)
    loader = DataLoader(digits, batch_size=128, sampler=sampler)
    model = wrap(SimpleModel().to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)

    steps, apart = [], [distance_to_rank_0(model)]
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            loss = F.cross_entropy(model(images.to(device)), labels.to(device))
            model.zero_grad()
            loss.backward()
            model.sync()  # torch's DDP does this inside backward()
            optimizer.step()
            steps.append(Step(epoch, len(steps), loss.item(), len(labels)))
            apart.append(distance_to_rank_0(model))
    return Trained(steps, apart, test_accuracy(model))


def distance_to_rank_0(model: nn.Module) -> float:
    """Every rank must call this; rank 0 gets 0."""
    mine = torch.cat([p.detach().flatten() for p in model.parameters()])
    theirs = mine.clone()
    dist.broadcast(theirs, src=0)
    return (mine - theirs).norm().item()


def test_accuracy(model: nn.Module) -> float:
    """The share of the 1,000 test digits that the replica of this rank alone gets right."""
    device = place_of_this_rank().device
    images, labels = MNISTDataset.from_digits(load_digits(train=False))[list(range(1000))]
    with torch.no_grad():
        return (model(images.to(device)).argmax(1).cpu() == labels).double().mean().item()


class Tricky(nn.Module):
    """784 → 16 → 16 → 10, and an extra layer that only images with a lit corner pixel pass through."""

    def __init__(self, case: str) -> None:
        super().__init__()
        self.first, self.middle = nn.Linear(784, 16), nn.Linear(16, 16)
        self.extra, self.last = nn.Linear(16, 16), nn.Linear(16, 10)
        if case == "tied weights":
            self.extra.weight = self.middle.weight
        if case == "frozen layer":
            self.middle.requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.tanh(self.middle(torch.tanh(self.first(images.flatten(1)))))
        lit = images[:, 0, 0, :1] > 0
        if lit.any():  # else the extra layer takes no part, and gets no gradient
            hidden = hidden + lit * self.extra(hidden)
        return self.last(hidden)


# Each with the share of every batch, from its start, that is lit; None stands for one rank's share.
CASES = {
    "different seeds": 1.0,
    "tied weights": 1.0,
    "frozen layer": 1.0,
    "layer without gradient": 0.0,
    "… except on rank 0": None,
}


def differences(rank: int) -> dict[str, dict[str, float]]:
    """max|w − w of one process| after 10 steps in float64, by case and version.

    The one process trains on the joined batches; every rank does that for itself, to compare with.
    """
    world_size = dist.get_world_size()
    small = {"bucketed": partial(Bucketed, cap=1024), "overlapped": partial(Overlapped, cap=1024)}
    found = {}
    for case, lit in CASES.items():
        joined = ten_batches(1 / world_size if lit is None else lit)
        torch.manual_seed(0)
        alone = learn(Tricky(case).double(), joined)
        mine = [(images.chunk(world_size)[rank], labels.chunk(world_size)[rank]) for images, labels in joined]
        found[case] = {}
        for name, wrap in (VERSIONS | small).items():
            torch.manual_seed(rank)
            weights = learn(wrap(Tricky(case).double()), mine)
            found[case][name] = (weights - alone).abs().max().item()
    return found


def ten_batches(lit: float, size: int = 48) -> list[tuple[Tensor, Tensor]]:
    """Ten batches of digits in float64; the first `lit` · `size` images of each have a lit corner."""
    digits = MNISTDataset.from_digits(load_digits(train=True), dtype=torch.float64)
    batches = [digits[list(range(i * size, (i + 1) * size))] for i in range(10)]
    for images, _ in batches:
        images[: round(lit * size), 0, 0, 0] = 1.0  # black in every digit
    return batches


def learn(model: nn.Module, batches: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """One step of SGD with momentum on each batch; returns all weights as one vector."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for images, labels in batches:
        loss = F.cross_entropy(model(images), labels)
        model.zero_grad()
        loss.backward()
        if isinstance(model, NoSync):
            model.sync()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])
