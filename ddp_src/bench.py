"""Measure what this project promises about speed and memory, side by side in one run.

python -m ddp_src.bench [--quick]     # prints a table and writes bench.json
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from ddp_src import own_ddp_timing
from ddp_src.config import Config
from ddp_src.data import MNISTDataset, batches, load_digits, test_loader, train_loader
from ddp_src.distributed import leave
from ddp_src.launch import spawn
from ddp_src.model import SimpleModel
from ddp_src.runfolder import hardware, write_json
from ddp_src.train import evaluate, train_on_rank

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Row:
    """One promise: what was measured, its goal, and whether it was kept."""

    what: str
    measured: str
    goal: str
    kept: bool


def one_ddp_step(rank: int) -> None:
    """The smallest job that needs everything: a DDP model, one forward and one backward pass."""
    model = DDP(torch.nn.Linear(8, 2))
    model(torch.ones(4, 8)).sum().backward()


def _plain_worker(rank: int, world_size: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    one_ddp_step(rank)
    leave()
    os._exit(0)  # ending the usual way, such a rank aborts now and then


def _plain_launch(world_size: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_plain_worker, (world_size, f"{folder}/store"), world_size)


def _seconds(fn: Callable[[], object]) -> float:
    start = time.perf_counter()
    fn()
    return time.perf_counter() - start


def launches(world_size: int, limit: float, *, repeats: int) -> list[Row]:
    """A warm launch against torch.multiprocessing.spawn, alternating, medians."""
    spawn(one_ddp_step, nprocs=world_size, backend="gloo", show=False)  # the server is warm from here on
    warm, plain = [], []
    for _ in range(repeats):
        warm.append(_seconds(lambda: spawn(one_ddp_step, nprocs=world_size, backend="gloo", show=False)))
        plain.append(_seconds(lambda: _plain_launch(world_size)))
    ours, theirs = statistics.median(warm), statistics.median(plain)
    return [
        Row(f"warm launch, {world_size} ranks, one DDP step", f"{ours:.2f} s", f"≤ {limit} s", ours <= limit),
        Row(
            f"torch.multiprocessing.spawn, {world_size} ranks, same step",
            f"{theirs:.2f} s = {theirs / ours:.0f}×",
            "≥ 15×",
            theirs / ours >= 15,
        ),
    ]


def first_loss() -> list[Row]:
    """From the call of `spawn` to the first step of training, when the server is warm."""
    start = time.time()
    seconds = min(spawn(_time_of_first_step, nprocs=2, backend="gloo", show=False)) - start
    return [Row("second launch, 2 ranks: first loss after", f"{seconds:.2f} s", "≤ 1 s", seconds <= 1)]


def _time_of_first_step(rank: int) -> float:
    times = []
    hook = register_optimizer_step_post_hook(lambda *_: times.append(time.time()))
    train_on_rank(rank, Config(progress=False, epochs=1))
    hook.remove()
    return times[0]


def _train_fed_by(loader: DataLoader, epochs: int) -> tuple[float, float]:
    """One process, one thread: samples/s of training, and test accuracy at the end."""
    torch.manual_seed(0)
    model = SimpleModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    start, samples = time.perf_counter(), 0
    for epoch in range(epochs):
        for images, labels in _epoch_of(loader, epoch):
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            samples += len(labels)
    speed = samples / (time.perf_counter() - start)
    tests = test_loader(MNISTDataset.from_digits(load_digits(train=False)), batch_size=1000)
    return speed, evaluate(model, tests, CPU, epoch=0, step=0).accuracy


def _epoch_of(loader: DataLoader, epoch: int):
    if isinstance(loader.sampler, DistributedSampler):
        loader.sampler.set_epoch(epoch)
        return loader
    return batches(loader, epoch=epoch)


def feeding(*, epochs: int) -> list[Row]:
    """Whole batches from one tensor against a PIL image and ToTensor per sample, same samples and order."""
    from torchvision.transforms import ToTensor

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    digits = load_digits(train=True)
    whole = train_loader(MNISTDataset.from_digits(digits), batch_size=128)
    pictures = MNISTDataset.from_digits(digits, transforms=ToTensor())
    sampler = DistributedSampler(pictures, num_replicas=1, rank=0)
    fast, accuracy = _train_fed_by(whole, epochs)
    slow, same = _train_fed_by(DataLoader(pictures, batch_size=128, sampler=sampler), epochs)
    fixed = _fixed_batch_speed()
    torch.set_num_threads(threads)
    return [
        Row("SimpleModel fed by PIL + ToTensor", f"{slow:,.0f} samples/s, accuracy {same:.1%}", "", True),
        Row(
            "SimpleModel fed whole batches",
            f"{fast:,.0f} samples/s = {fast / slow:.1f}×, accuracy {accuracy:.1%}",
            "≥ 3.5×, equal accuracy",
            fast / slow >= 3.5 and accuracy == same,
        ),
        Row("step against one fixed batch", f"{fixed / fast:.2f}×", "≤ 1.35×", fixed / fast <= 1.35),
    ]


def _fixed_batch_speed(steps: int = 320) -> float:
    images, labels = MNISTDataset.from_digits(load_digits(train=True))[list(range(128))]
    torch.manual_seed(0)
    model = SimpleModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    start = time.perf_counter()
    for _ in range(steps):
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return steps * len(labels) / (time.perf_counter() - start)


def own_ddp(*, rounds: int) -> list[Row]:
    """Chapter 05's versions of DDP against torch's on SimpleModel, interleaved, medians of the ratios."""
    arguments = (SimpleModel, 32, 10, rounds)
    seconds = spawn(own_ddp_timing.time_steps, arguments, nprocs=2, backend="gloo", show=False)[0]
    found = {name: statistics.median(them) for name, them in own_ddp_timing.ratios(seconds).items()}
    naive, flat, overlapped = found["naive"], found["flat"], found["overlapped"]
    return [
        Row("own DDP, naive / torch's DDP", f"{naive:.2f}×", "≥ 1.8×", naive >= 1.8),
        Row("own DDP, flat / torch's DDP", f"{flat:.2f}×", "≤ 1.08×", flat <= 1.08),
        Row("own DDP, bucketed / torch's DDP", f"{found['bucketed']:.2f}×", "", True),
        Row("own DDP, overlapped / torch's DDP", f"{overlapped:.2f}×", "≤ 1.15×", overlapped <= 1.15),
    ]


def _train_and_weigh(rank: int) -> tuple[float, float]:
    train_on_rank(rank, Config(progress=False))
    return _memory("self")


def _memory(pid: int | str) -> tuple[float, float]:
    """Peak resident memory, and memory that no other process shares, of a process, in MB (Linux)."""
    proc = Path("/proc", str(pid))
    status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
    parts = dict(line.split(":", 1) for line in (proc / "smaps_rollup").read_text().splitlines()[1:])
    private = sum(int(parts[name].split()[0]) for name in ("Private_Clean", "Private_Dirty"))
    return int(status["VmHWM"].split()[0]) / 1024, private / 1024


def memory() -> list[Row]:
    """Ranks that train on the embedded digits, warm and cold, and a bare import of torch."""
    if sys.platform != "linux":
        return []
    show = "import torch; print([l for l in open('/proc/self/status') if 'VmHWM' in l][0].split()[1])"
    bare = int(subprocess.run([sys.executable, "-c", show], capture_output=True, check=True).stdout) / 1024
    warm = spawn(_train_and_weigh, nprocs=2, backend="gloo", show=False)
    cold = spawn(_train_and_weigh, nprocs=2, backend="gloo", start_method="spawn", show=False)
    (server,) = spawn(lambda rank: os.getppid(), nprocs=1, backend="gloo", show=False)
    peak, own = (max(rank[i] for rank in warm) for i in (0, 1))
    above = max(rank[0] for rank in cold) - bare
    return [
        Row("warm rank training: peak memory", f"{peak:.0f} MB", "< 500 MB", peak < 500),
        Row("warm rank training: its own", f"{own:.0f} MB", "< 60 MB", own < 60),
        Row("warm server, while no rank runs: its own", f"{_memory(server)[1]:.0f} MB", "", True),
        Row(
            "cold rank training: peak above `import torch`",
            f"{above:.0f} MB above {bare:.0f} MB",
            "≤ 220 MB",
            above <= 220,
        ),
    ]


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, write bench.json; the status is 1 when a goal was missed."""
    parser = argparse.ArgumentParser(prog="python -m ddp_src.bench", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, rougher numbers")
    parser.add_argument("--out", default="bench.json", metavar="FILE")
    options = parser.parse_args(arguments)
    repeats, epochs, rounds = (3, 2, 7) if options.quick else (10, 10, 31)
    rows = [*launches(2, 0.3, repeats=repeats), *launches(4, 0.5, repeats=repeats)]
    rows += [*first_loss(), *memory(), *feeding(epochs=epochs), *own_ddp(rounds=rounds)]
    width = max(len(row.what) for row in rows)
    for row in rows:
        verdict = f"{row.goal}: {'kept' if row.kept else 'MISSED'}" if row.goal else ""
        print(f"{row.what:<{width}}  {row.measured:<36}  {verdict}")
    result = {"hardware": hardware(), "load": os.getloadavg()[0], "rows": [asdict(row) for row in rows]}
    write_json(Path(options.out), result)
    return 0 if all(row.kept for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
