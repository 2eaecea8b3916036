"""What a step of each version of `own_ddp` costs beside torch's DDP, and when its all-reduces run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.profiler import ProfilerActivity, profile, record_function

from ddp_src.data import MNISTDataset, load_digits
from ddp_src.model import SmallCNN
from ddp_src.own_ddp import VERSIONS

TORCHS = "torch's DDP"


class TorchDDP(DDP):
    """torch's own, with the method that ours have: it has averaged by the time `backward()` returns."""

    def sync(self) -> None:
        pass


def step_of(model: nn.Module, batch: int) -> Callable[[], None]:
    """A training step of `model` on one batch that stays the same; a profiler sees its phases by name."""
    images, labels = MNISTDataset.from_digits(load_digits(train=True))[list(range(batch))]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def one_step() -> None:
        model.zero_grad()
        with record_function("forward"):
            loss = F.cross_entropy(model(images), labels)
        with record_function("backward"):
            loss.backward()
        with record_function("sync"):
            model.sync()
        with record_function("update"):
            optimizer.step()

    return one_step


def time_steps(
    rank: int, build: Callable[[], nn.Module], batch: int, steps: int, rounds: int = 15
) -> dict[str, list[float]]:
    """Seconds per step, by version, in each of `rounds` rounds of `steps` steps per version.

    Every round runs every version, each time starting with another one: what else the machine does, and
    what one version leaves behind for the next, then hits all of them alike.
    """
    versions = VERSIONS | {TORCHS: TorchDDP}
    one_step = {name: step_of(wrap(build()), batch) for name, wrap in versions.items()}
    names, seconds = list(versions), {name: [] for name in versions}
    for number in range(-2, rounds):  # two more to warm up
        first = number % len(names)
        for name in names[first:] + names[:first]:
            dist.barrier()
            start = time.perf_counter()
            for _ in range(steps):
                one_step[name]()
            if number >= 0:
                seconds[name].append((time.perf_counter() - start) / steps)
    return seconds


def ratios(seconds: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Each version's step time over that of torch's DDP in the same round."""
    return {
        name: [ours / theirs for ours, theirs in zip(times, seconds[TORCHS], strict=True)]
        for name, times in seconds.items()
    }


@dataclass(frozen=True)
class Span:
    """Something that ran from `start` to `end`, in ms since its step began."""

    name: str
    start: float
    end: float


PHASES = ("forward", "backward", "sync", "update")
# What the profiler calls the launch of an all-reduce, and the all-reduce itself on Gloo's own threads.
_CALLS = {"c10d::allreduce_": "launch", "gloo:all_reduce": "all-reduce"}


def trace(rank: int, names: Sequence[str], batch: int = 16, steps: int = 6) -> dict[str, list[Span]]:
    """The fastest of `steps` steps of SmallCNN for each version in `names`, as the profiler saw it."""
    one_step = {name: step_of(VERSIONS[name](SmallCNN()), batch) for name in names}
    for name in names:
        one_step[name]()
    dist.barrier()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(steps):
            for name in names:
                with record_function(f"step of {name}"):
                    one_step[name]()
    events = profiler.events()
    return {name: _fastest(f"step of {name}", events) for name in names}


def _fastest(step: str, events: Sequence) -> list[Span]:
    whole = min((e.time_range for e in events if e.name == step), key=lambda t: t.end - t.start)
    spans = [
        Span(
            _CALLS.get(e.name, e.name),
            (e.time_range.start - whole.start) / 1e3,
            (e.time_range.end - whole.start) / 1e3,
        )
        for e in events
        if e.name in (*PHASES, *_CALLS) and whole.start <= e.time_range.start < whole.end
    ]
    return sorted(spans, key=lambda span: span.start)


def launched_early(spans: Sequence[Span]) -> tuple[int, int]:
    """How many all-reduces of a step were launched before its `backward()` ended, and how many in all."""
    (end,) = [span.end for span in spans if span.name == "backward"]
    launches = [span.start for span in spans if span.name == "launch"]
    return sum(start < end for start in launches), len(launches)
