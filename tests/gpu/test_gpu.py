"""What only a machine with an NVIDIA GPU can show; elsewhere these tests are skipped."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ddp_src import spawn
from ddp_src.cli import main
from ddp_src.config import Config
from ddp_src.distributed import place_of_this_rank
from ddp_src.lessons import quickstart
from ddp_src.runlog import mean_losses, read_run
from ddp_src.train import train_on_rank

GPUS = torch.cuda.device_count()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(GPUS == 0, reason="no NVIDIA GPU here")]


def device_and_sum(rank: int) -> tuple[str, float]:
    place = place_of_this_rank()
    total = torch.ones(1, device=place.device)
    torch.distributed.all_reduce(total)
    return str(place.device), total.item()


def test_every_rank_has_a_gpu_of_its_own_and_nccl_between_them():
    assert spawn(device_and_sum, show=False) == [(f"cuda:{rank}", GPUS) for rank in range(GPUS)]


def test_the_program_trains_and_resumes_bit_for_bit(tmp_path):
    whole, halved = (str(tmp_path / name) for name in ("whole", "halved"))
    assert main(["--epochs", "2", "--out", whole]) == 0
    assert main(["--epochs", "1", "--out", halved]) == 0
    assert main(["--resume", halved, "--epochs", "2"]) == 0
    assert [[s.loss for s in log.steps] for log in read_run(halved)] == [
        [s.loss for s in log.steps] for log in read_run(whole)
    ]
    hardware = json.loads(Path(whole, "hardware.json").read_text())
    assert hardware["gpus"] == [torch.cuda.get_device_name(index) for index in range(GPUS)]


def test_all_gpus_are_one_process_on_the_joined_batch():
    ranks = spawn(quickstart.train, (1,), show=False)
    (alone,) = spawn(quickstart.train, (1,), nprocs=1, show=False)
    means = mean_losses([trained.steps for trained in ranks])
    assert max(abs(m - step.loss) for m, step in zip(means, alone.steps, strict=True)) < 1e-12


def test_a_checkpoint_of_a_gpu_continues_on_the_cpu(tmp_path):
    config = Config(progress=False, epochs=1, out=str(tmp_path))
    (first,) = spawn(train_on_rank, (config,), 1, show=False)
    more = replace(config, epochs=2)
    (second,) = spawn(train_on_rank, (more, True), 1, backend="gloo", show=False)
    assert second.steps[0].step == first.steps[-1].step + 1
    assert second.steps[0].loss < first.steps[0].loss
