"""Chapter 06: what DDP sends and when, what is in its buckets, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.profiler import profile, record_function

from ddp_src.data import MNISTDataset, load_digits
from ddp_src.distributed import place_of_this_rank

LAYERS, WIDTH = 12, 512


def deep_model() -> nn.Sequential:
    """12 equal layers, each with 512 × 512 weights and 512 biases: 12,607,488 bytes in float32."""
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))


def profile_steps(rank: int, path: str, steps: int = 2, options: dict | None = None) -> None:
    """Wrap the model and train it for `steps` steps; rank 0 writes down what ran when, to `path`."""
    with profile(record_shapes=True) as trace:
        with record_function("construct"):
            ddp = DDP(deep_model(), **(options or {}))
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
        for step in range(1, steps + 1):
            inputs = torch.randn(256, WIDTH)
            with record_function(f"forward {step}"):
                loss = ddp(inputs).square().mean()
            with record_function(f"backward {step}"):
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    if rank == 0:
        trace.export_chrome_trace(path)


@dataclass(frozen=True)
class Bucket:
    """One bucket that was sent: its bytes, and the parameters whose gradients it holds."""

    nbytes: int
    parameters: list[str]


def record_buckets(rank: int, options: dict, steps: int = 3) -> list[list[Bucket]]:
    """The buckets of each step in the order in which DDP sends them; `options` go to DDP."""
    device = place_of_this_rank().device
    model = deep_model().to(device)
    names = {parameter: name for name, parameter in model.named_parameters()}
    ddp = DDP(model, **options)
    seen: list[list[Bucket]] = []

    def watch(state, bucket):  # DDP insists on the name `bucket`
        seen[-1].append(Bucket(bucket.buffer().nbytes, [names[p] for p in bucket.parameters()]))
        return allreduce_hook(dist.group.WORLD, bucket)  # what DDP does by itself

    ddp.register_comm_hook(None, watch)
    for _ in range(steps):
        seen.append([])
        ddp(torch.randn(8, WIDTH, device=device)).square().mean().backward()
    return seen


def gradient_storages(rank: int, as_view: bool) -> tuple[int, int]:
    """How many gradients there are after three steps, and in how many blocks of memory they live."""
    device = place_of_this_rank().device
    ddp = DDP(deep_model().to(device), gradient_as_bucket_view=as_view)
    for _ in range(3):
        ddp(torch.randn(8, WIDTH, device=device)).square().mean().backward()
    gradients = [parameter.grad for parameter in ddp.parameters()]
    return len(gradients), len({gradient.untyped_storage().data_ptr() for gradient in gradients})


def wrap(rank: int, outputs: int) -> tuple[float, float]:
    """One weight of a layer with `outputs` outputs, before and after it is wrapped."""
    torch.manual_seed(rank)
    layer = nn.Linear(784, outputs).to(place_of_this_rank().device)
    before = layer.weight[0, 0].item()
    DDP(layer)
    return before, layer.weight[0, 0].item()


def wrap_unequal(rank: int) -> tuple[float, float]:
    """The same, but each rank was told another size."""
    return wrap(rank, outputs=100 + rank)


class Classifier(nn.Module):
    """For digits, with BatchNorm: its running mean is a buffer, which is kept but has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(784, 100), nn.BatchNorm1d(100), nn.ReLU(), nn.Linear(100, 10))

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images.flatten(1))

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self(images), labels)


@dataclass(frozen=True)
class AfterStep:
    """What one rank holds after one step: all entries of each as a vector, and what DDP would save."""

    loss: Tensor
    gradients: Tensor
    weights: Tensor
    running_mean: Tensor
    state: dict[str, Tensor]


def train_step(rank: int, loss_of: Callable[[DDP, Tensor, Tensor], Tensor]) -> AfterStep:
    """One step on 80 digits of this rank's own. `loss_of` says by which way the loss is computed."""
    device = place_of_this_rank().device
    digits = MNISTDataset.from_digits(load_digits(train=True))
    images, labels = (tensor.to(device) for tensor in digits[list(range(rank, 4000, 50))])

    torch.manual_seed(rank)
    ddp = DDP(Classifier().to(device))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    loss = loss_of(ddp, images, labels)
    loss.backward()
    optimizer.step()

    parameters = list(ddp.parameters())
    return AfterStep(
        loss=loss.detach().cpu(),
        gradients=torch.cat([parameter.grad.flatten() for parameter in parameters]).cpu(),
        weights=torch.cat([parameter.detach().flatten() for parameter in parameters]).cpu(),
        running_mean=ddp.module.layers[1].running_mean.cpu(),
        state={name: tensor.cpu() for name, tensor in ddp.state_dict().items()},
    )
