"""Chapter 04: which rank sees which sample, in training, in a test and from a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, get_worker_info
from torch.utils.data.distributed import DistributedSampler

from ddp_src.data import MNISTDataset, load_digits
from ddp_src.distributed import place_of_this_rank
from ddp_src.model import SimpleModel


@dataclass(frozen=True)
class Trained:
    """What a rank brings back: which samples it saw, its losses, the test accuracy, the weights."""

    batches: list[list[list[int]]]  # batches[epoch][step]: the numbers of the samples
    losses: list[list[float]]  # losses[epoch][step], the rank's own, in nats
    accuracy: float  # on the 1,000 test digits, the same on all ranks
    weights: dict[str, Tensor]

    @property
    def epochs(self) -> list[list[int]]:
        """The numbers of the samples seen in each epoch, in the order in which they came."""
        return [[number for batch in batches for number in batch] for batches in self.batches]

    @property
    def different(self) -> set[int]:
        """The numbers of all samples seen, each once."""
        return {number for epoch in self.epochs for number in epoch}

    @property
    def last_loss(self) -> float:
        """The mean loss over the samples of the last epoch, nats."""
        sizes = [len(batch) for batch in self.batches[-1]]
        return sum(loss * size for loss, size in zip(self.losses[-1], sizes, strict=True)) / sum(sizes)


def train(rank: int, samples: int, with_set_epoch: bool, epochs: int = 10) -> Trained:
    """What every rank runs: train on the first `samples` digits and note which of them came when."""
    device = place_of_this_rank().device
    torch.manual_seed(0)
    images, labels = MNISTDataset.from_digits(load_digits(train=True))[list(range(samples))]
    digits = TensorDataset(images, labels, torch.arange(samples))  # each sample brings its number

    sampler = DistributedSampler(digits)
    loader = DataLoader(digits, batch_size=128, sampler=sampler)
    model = DDP(SimpleModel().to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)

    batches, losses = [], []
    for epoch in range(epochs):
        if with_set_epoch:
            sampler.set_epoch(epoch)
        batches.append([])
        losses.append([])
        for images, labels, numbers in loader:
            loss = F.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            batches[epoch].append(numbers.tolist())
            losses[epoch].append(loss.item())
    weights = {name: tensor.cpu() for name, tensor in model.module.state_dict().items()}
    tests = MNISTDataset.from_digits(load_digits(train=False))
    return Trained(batches, losses, exact_accuracy(model.module, tests), weights)


def joined_batches(ranks: Sequence[Trained]) -> set[frozenset[int]]:
    """The different batches that the ranks had together: the samples of one step on all ranks, each once."""
    epochs = zip(*(rank.batches for rank in ranks), strict=True)
    steps = (step for epoch in epochs for step in zip(*epoch, strict=True))
    return {frozenset(number for batch in step for number in batch) for step in steps}


def count_right(model: nn.Module, digits: MNISTDataset, numbers: Sequence[int]) -> int:
    """How many of the samples with these numbers the model gets right."""
    device = place_of_this_rank().device
    images, labels = digits[list(numbers)]
    with torch.no_grad():
        return (model(images.to(device)).argmax(1) == labels.to(device)).sum().item()


def exact_accuracy(model: nn.Module, digits: MNISTDataset) -> float:
    """The share of right answers over all samples: each tested once, on one rank."""
    mine = range(dist.get_rank(), len(digits), dist.get_world_size())  # nothing repeated, nothing left out
    total = torch.tensor([count_right(model, digits, mine), len(mine)], device=place_of_this_rank().device)
    dist.all_reduce(total)  # adds up both numbers over all ranks
    right, tested = total.tolist()
    return right / tested


@dataclass(frozen=True)
class Tested:
    """The accuracy of one model on the same test digits, computed in three ways."""

    slots: int  # samples tested over all ranks by a DistributedSampler, repeated ones included
    padded: float  # right answers over `slots`
    mean_of_ranks: float  # nothing repeated, but the ranks' own accuracies are averaged
    exact: float


def test(rank: int, weights: dict[str, Tensor]) -> Tested:
    """Test a trained model on the 1,000 test digits, in two ways that are common and in the right one."""
    place = place_of_this_rank()
    model = SimpleModel().to(place.device)
    model.load_state_dict(weights)
    digits = MNISTDataset.from_digits(load_digits(train=False))

    padded = list(DistributedSampler(digits, shuffle=False))
    mine = range(rank, len(digits), place.world_size)
    own = [count_right(model, digits, padded), len(padded), count_right(model, digits, mine) / len(mine)]
    sums = torch.tensor(own, dtype=torch.float64, device=place.device)
    dist.all_reduce(sums)
    right, slots, accuracies = sums.tolist()
    return Tested(int(slots), right / slots, accuracies / place.world_size, exact_accuracy(model, digits))


class Stream(IterableDataset):
    """Samples 0, 1, 2, … that come one after another, as lines come out of a file."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length))


class SharedStream(Stream):
    """The same stream, of which every rank and each of its workers takes a part of its own.

    Each worker still reads the whole stream and drops the others' samples.
    """

    def __init__(self, length: int, rank: int, world_size: int) -> None:
        super().__init__(length)
        # given, not asked for: a worker that starts as a fresh process does not know its rank
        self.rank, self.world_size = rank, world_size

    def __iter__(self) -> Iterator[int]:
        mine = islice(super().__iter__(), self.rank, None, self.world_size)
        worker = get_worker_info()  # None in the rank itself
        return islice(mine, worker.id, None, worker.num_workers) if worker else mine


def read_stream(rank: int, shared: bool, length: int = 10, workers: int = 2) -> list[list[int]]:
    """The batches that this rank's loader gets from a stream, with `workers` loader processes."""
    stream = SharedStream(length, rank, dist.get_world_size()) if shared else Stream(length)
    return [batch.tolist() for batch in DataLoader(stream, batch_size=5, num_workers=workers)]
