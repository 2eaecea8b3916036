"""Chapter 00: two ranks are one process on the joined batch, and its first listing fails as it says."""

import pytest
import torch

from ddp_src import RankFailed, spawn
from ddp_src.lessons import quickstart
from ddp_src.runlog import mean_losses

EPOCHS = 3


@pytest.fixture(scope="module")
def ranks():
    return spawn(quickstart.train, (EPOCHS,), nprocs=2, show=False)


def test_the_mean_of_the_ranks_is_the_loss_of_one_process(ranks):
    (alone,) = spawn(quickstart.train, (EPOCHS,), nprocs=1, show=False)
    means = mean_losses([trained.steps for trained in ranks])
    assert len(means) == len(alone.steps) == EPOCHS * 16
    assert max(abs(m - step.loss) for m, step in zip(means, alone.steps, strict=True)) < 1e-12
    assert (ranks[0].weights - alone.weights).abs().max() < 1e-12


def test_the_ranks_hold_equal_weights_and_unequal_losses(ranks):
    first, second = ranks
    assert torch.equal(first.weights, second.weights)
    assert all(a.loss != b.loss for a, b in zip(first.steps, second.steps, strict=True))
    assert {step.samples for step in first.steps} == {128, 80}  # 2,000 = 15 × 128 + 80


def test_the_mended_listing_prints_nothing(capfd):
    assert spawn(quickstart.first_listing, nprocs=2) == [[], []]
    assert "epoch" not in capfd.readouterr().out


def test_nccl_without_a_gpu_is_refused():
    with pytest.raises(RankFailed) as caught:
        spawn(quickstart.ask_for_nccl, nprocs=1, backend="gloo", show=False)
    assert "only supported with GPUs" in caught.value.message
