"""The training program: N ranks are one process, metrics are exact, and a stopped run goes on bit for bit."""

import os
import signal
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.optim.optimizer import register_optimizer_step_post_hook

from ddp_src import RankFailed, data, spawn
from ddp_src.checkpoint import load_checkpoint
from ddp_src.config import Config
from ddp_src.data import Digits, MNISTDataset, load_digits, train_loader
from ddp_src.distributed import place_of_this_rank
from ddp_src.model import SimpleModel
from ddp_src.recorder import History
from ddp_src.runlog import Step, mean_losses, read_run
from ddp_src.train import evaluate, train_on_rank

QUIET = Config(progress=False, dtype="float64", epochs=2)


def weights_of(parameters) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in parameters])


def train_and_watch(rank: int, config: Config) -> tuple[History, torch.Tensor]:
    """Train, and bring back the parameters after every step, [steps, parameters]."""
    seen = []
    hook = register_optimizer_step_post_hook(
        lambda optimizer, *_: seen.append(weights_of(optimizer.param_groups[0]["params"]))
    )
    history = train_on_rank(rank, config)
    hook.remove()
    return history, torch.stack(seen)


def plain_loop(*, batch_size: int, epochs: int, seed: int) -> tuple[list[float], torch.Tensor]:
    """One process, no DDP, no sampler: the reference, with the order that the ranks share out."""
    torch.manual_seed(seed)
    digits = load_digits(train=True)
    images = digits.images.double().div(255).unsqueeze(1)
    model = SimpleModel().double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    losses, seen = [], []
    for epoch in range(epochs):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed + epoch))
        for batch in order.split(batch_size):
            loss = F.cross_entropy(model(images[batch]), digits.labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            seen.append(weights_of(model.parameters()))
    return losses, torch.stack(seen)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_n_ranks_are_one_process_on_the_joined_batch_after_every_step(world_size):
    config = replace(QUIET, nproc=world_size, batch_size=256 // world_size, seed=3)
    ranks = spawn(train_and_watch, (config,), world_size, show=False)
    losses, seen = plain_loop(batch_size=256, epochs=2, seed=3)
    means = mean_losses([history.steps for history, _ in ranks])
    assert len(means) == len(losses) == 32
    assert max(abs(a - b) for a, b in zip(means, losses, strict=True)) < 1e-12
    for _, weights in ranks:
        assert (weights - seen).abs().max() < 1e-12


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_all_ranks_end_with_bit_equal_parameters(world_size):
    config = replace(QUIET, dtype="float32", nproc=world_size, model="cnn", epochs=1, batch_size=256)
    ranks = spawn(train_on_rank, (config,), world_size, show=False)
    assert len({history.digest for history in ranks}) == 1
    assert all(history.epochs == ranks[0].epochs for history in ranks)


def test_every_epoch_has_an_order_of_its_own():
    (history,) = spawn(train_on_rank, (replace(QUIET, lr=1e-300),), 1, show=False)
    losses = [step.loss for step in history.steps]
    # with a learning rate of nothing, equal batches would have equal losses
    assert all(a != b for a, b in zip(losses[:32], losses[32:], strict=True))


def accuracy_of_one_model(rank: int, digits: Digits) -> tuple[float, int]:
    torch.manual_seed(0)  # the same untrained model on every rank
    place = place_of_this_rank()
    loader = data.test_loader(
        MNISTDataset.from_digits(digits), batch_size=1000, rank=rank, world_size=place.world_size
    )
    result = evaluate(SimpleModel(), loader, place.device, epoch=0, step=0)
    return result.accuracy, result.samples


@pytest.mark.parametrize("count", [1000, 21, 3])
def test_accuracy_is_the_same_number_on_any_number_of_ranks(count):
    digits = load_digits(train=False)
    digits = Digits(digits.images[:count], digits.labels[:count])
    answers = set()
    for world_size in (1, 2, 3, 7):
        answers |= set(spawn(accuracy_of_one_model, (digits,), world_size, show=False))
    ((accuracy, samples),) = answers
    assert samples == count
    assert accuracy * count == pytest.approx(round(accuracy * count), abs=1e-9)


def test_every_rank_has_the_same_number_of_steps_and_sees_its_share_once():
    digits = MNISTDataset.from_digits(load_digits(train=True))
    loaders = [train_loader(digits, batch_size=128, rank=r, world_size=3, seed=0) for r in range(3)]
    assert {len(loader) for loader in loaders} == {11}  # 4,002 slots for 4,000 samples: 1,334 = 10 · 128 + 54


def die_at(rank: int, config: Config, step: int) -> None:
    """Train and be killed, like a machine that loses power, right after `step` steps."""
    steps = []

    def hook(*_: object) -> None:
        steps.append(1)
        if len(steps) == step + 1:
            os.kill(os.getpid(), signal.SIGKILL)

    register_optimizer_step_post_hook(hook)
    train_on_rank(rank, config)


def losses_and_accuracies(folder) -> list[tuple]:
    """What each rank recorded without the times, which differ from run to run."""
    return [
        ([(s.step, s.loss, s.samples) for s in log.steps], [(e.step, e.accuracy, e.loss) for e in log.epochs])
        for log in read_run(folder)
    ]


@pytest.mark.parametrize(("world_size", "killed_after"), [(1, 9), (2, 16), (3, 13), (4, 7)])
def test_a_killed_run_goes_on_as_if_nothing_had_happened(tmp_path, world_size, killed_after):
    whole, torn = (
        replace(QUIET, nproc=world_size, dtype="float32", checkpoint_every=3, out=str(tmp_path / name))
        for name in ("whole", "torn")
    )
    for config in (whole, torn):
        os.mkdir(config.out)
    undisturbed = spawn(train_on_rank, (whole,), world_size, show=False)
    with pytest.raises(RankFailed, match="SIGKILL"):
        spawn(die_at, (torn, killed_after), world_size, show=False)
    resumed = spawn(train_on_rank, (torn, True), world_size, show=False)
    assert resumed[0].steps[0].step == killed_after // 3 * 3 or killed_after == 16
    assert [history.digest for history in resumed] == [history.digest for history in undisturbed]
    assert losses_and_accuracies(torn.out) == losses_and_accuracies(whole.out)
    steps = [step.step for step in read_run(torn.out)[0].steps]
    assert steps == list(range(len(steps)))


def use_all_generators(rank: int, folder: str) -> list[float]:
    """Draw from each generator after a checkpoint, and again after loading it: the same numbers."""
    import random

    import numpy as np

    from ddp_src.checkpoint import save_checkpoint

    torch.manual_seed(rank)
    random.seed(rank)
    np.random.seed(rank)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())

    def draw() -> list[float]:
        return [torch.rand(()).item(), random.random(), np.random.random()]

    save_checkpoint(folder, model=model, optimizer=optimizer, step=5)
    dist.barrier()  # only rank 0 writes, and the others must not read before it has
    first = draw()
    assert load_checkpoint(folder, model=model, optimizer=optimizer) == 5
    return [*first, *draw()]


def test_each_rank_gets_its_own_random_generators_back(tmp_path):
    ranks = spawn(use_all_generators, (str(tmp_path),), 2, show=False)
    for draws in ranks:
        assert draws[:3] == draws[3:]
    assert ranks[0] != ranks[1]


def leave_out_one_gradient(rank: int) -> None:
    """A rank whose optimizer gets a gradient of its own, as with `ddp.module(x)` or a missing all-reduce."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    def spoil(optimizer: torch.optim.Optimizer, *_: object) -> None:
        optimizer.param_groups[0]["params"][0].grad.add_(rank)

    register_optimizer_step_pre_hook(spoil)
    train_on_rank(rank, replace(QUIET, nproc=2, epochs=1))


def test_ranks_that_drift_apart_are_told():
    with pytest.raises(RankFailed) as caught:
        spawn(leave_out_one_gradient, (), 2, show=False)
    assert caught.value.error_type == "ReplicasDiffer"
    assert "different parameters" in caught.value.message
    assert "参数不一样" in caught.value.message


def test_every_phase_of_a_step_is_timed():
    (history,) = spawn(train_on_rank, (replace(QUIET, epochs=1),), 1, show=False)
    assert all(isinstance(step, Step) for step in history.steps)
    for step in history.steps:
        assert min(step.data, step.forward, step.backward, step.update) > 0
