"""One rank's life: where it stands, how it joins and leaves, and what ranks agree on."""

import os
import socket

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddp_src import RankFailed, distributed, spawn
from ddp_src.distributed import (
    Place,
    choose_backend,
    digest,
    place_of_this_rank,
    process_group,
    run_on_main,
    same_on_all_ranks,
    set_threads,
    settle_buckets,
    sum_over_ranks,
    threads_per_rank,
    unwrap,
    usable_cores,
)
from ddp_src.errors import ConfigError

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def no_launcher_no_gpu(monkeypatch):
    for name in (*distributed.LAUNCHER_VARIABLES, "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


# --- joining and leaving ----------------------------------------------------------------------------------


def test_a_process_started_alone_needs_no_group():
    with process_group() as place:
        assert place == Place(rank=0, local_rank=0, world_size=1, device=CPU)
        assert place.is_main
        assert not dist.is_initialized()


def test_under_spawn_the_group_is_there_and_stays():
    def work(rank):
        with process_group() as place:
            assert place == place_of_this_rank()
        return place, dist.is_initialized()

    assert spawn(work) == [(Place(rank, rank, 2, CPU), True) for rank in (0, 1)]


def test_the_group_of_another_launcher_is_joined_and_left(monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    variables = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(KeyError), process_group() as place:
        assert place == Place(rank=0, local_rank=0, world_size=1, device=CPU)
        assert dist.get_backend() == "gloo"
        raise KeyError
    assert not dist.is_initialized()


def launched_as(monkeypatch, **variables):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", **variables}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"])
@pytest.mark.parametrize("value", ["abc", "", "-1", "1.5"])
def test_a_variable_that_is_no_number_is_named(name, value, monkeypatch):
    launched_as(monkeypatch, **{name: value})
    with pytest.raises(ConfigError) as caught, process_group("gloo"):
        pass
    assert caught.value.en == (
        f"{name} is {value!r}: it must be a whole number; a launcher such as torchrun sets it."
    )
    assert caught.value.zh == f"{name} 是 {value!r}：它必须是整数，由 torchrun 这样的启动器设置。"


def test_a_rank_beyond_the_world_is_refused(monkeypatch):
    launched_as(monkeypatch, RANK="2")
    with pytest.raises(ConfigError) as caught, process_group("gloo"):
        pass
    assert caught.value.en == (
        "RANK is 2 and WORLD_SIZE is 2: ranks are counted from 0, so RANK must be smaller."
    )


def test_variables_that_are_missing_are_all_named(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError) as caught, process_group():
        pass
    assert caught.value.en == (
        "RANK, WORLD_SIZE is set but LOCAL_RANK, MASTER_ADDR, MASTER_PORT is not: start the program with "
        "`torchrun --nproc-per-node 2 -m ddp_src.train`, which sets all of them."
    )
    assert caught.value.zh == (
        "设置了 RANK, WORLD_SIZE，却没有 LOCAL_RANK, MASTER_ADDR, MASTER_PORT："
        "请用 `torchrun --nproc-per-node 2 -m ddp_src.train` 启动，它会把这些变量全部设好。"
    )


# --- backend and threads ----------------------------------------------------------------------------------


def test_auto_is_nccl_only_with_a_gpu_for_every_rank(monkeypatch):
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [choose_backend("auto", ranks) for ranks in (1, 2, 3)] == ["nccl", "nccl", "gloo"]
    assert choose_backend("gloo", 2) == "gloo"
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    assert choose_backend("auto", 2) == "gloo"


def test_a_backend_that_cannot_work_is_refused(monkeypatch):
    with pytest.raises(ConfigError, match="there is no backend 'NCCL': choose one of auto, gloo, nccl"):
        choose_backend("NCCL", 2)
    with pytest.raises(ConfigError, match="nccl needs a GPU for each of the 2 ranks and this machine has 0"):
        choose_backend("nccl", 2)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    with pytest.raises(ConfigError, match="this build of torch has no nccl"):
        choose_backend("nccl", 2)


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max 100000", 8), ("300000 100000", 3), ("150000 100000", 1), ("50000 100000", 1), ("nonsense", 8)],
)
def test_cores_are_counted_by_affinity_and_quota(quota, cores, monkeypatch, tmp_path):
    (tmp_path / "cpu.max").write_text(quota + "\n")
    monkeypatch.setattr(distributed, "Path", lambda path: tmp_path / os.path.basename(path))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert usable_cores() == cores


def test_ranks_share_the_cores_unless_the_user_said_otherwise(monkeypatch):
    monkeypatch.setattr(distributed, "usable_cores", lambda: 6)
    assert [threads_per_rank(ranks) for ranks in (1, 2, 4, 7)] == [6, 3, 1, 1]
    set_threads(2)
    assert torch.get_num_threads() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    set_threads(6)
    assert torch.get_num_threads() == 3


# --- what ranks agree on ----------------------------------------------------------------------------------


def test_sums_are_exact_and_the_same_on_every_rank():
    def work(rank):
        return sum_over_ranks([2.0**40 if rank == 0 else 1.0, 0.5 * rank], CPU)

    assert spawn(work, nprocs=3) == [[2.0**40 + 2, 1.5]] * 3
    assert sum_over_ranks([1.0, 2.0], CPU) == [1.0, 2.0]


def test_texts_and_digests_are_compared_over_all_ranks():
    def work(rank):
        torch.manual_seed(rank)
        model = nn.Linear(2, 2)
        before = same_on_all_ranks(digest(model))
        ddp = DistributedDataParallel(model)
        return before, same_on_all_ranks(digest(ddp)), digest(ddp) == digest(model), unwrap(ddp) is model

    assert spawn(work, nprocs=3) == [(False, True, True, True)] * 3
    assert same_on_all_ranks("alone")


def test_a_digest_sees_a_single_bit():
    model = nn.Linear(3, 2)
    before = digest(model)
    assert unwrap(model) is model
    with torch.no_grad():
        model.bias[1] = torch.nextafter(model.bias[1], torch.tensor(9.0))
    assert digest(model) != before


def test_settled_buckets_add_up_in_the_same_order_from_the_first_step():
    def work(rank):
        torch.manual_seed(0)
        layers = [nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 10)]
        model = DistributedDataParallel(nn.Sequential(*layers))
        images = torch.randn(16, 20, generator=torch.Generator().manual_seed(rank))
        settle_buckets(model, images)
        gradients = []
        for _ in range(2):
            model.zero_grad()
            model(images).square().sum().backward()
            gradients.append(torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()]))
        return torch.equal(*gradients)

    assert spawn(work, nprocs=3) == [True, True, True]


def test_settling_leaves_no_trace():
    def work(rank):
        layers = [nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout()]
        model = DistributedDataParallel(nn.Sequential(*layers))
        state = {name: value.clone() for name, value in model.state_dict().items()}
        generator = torch.get_rng_state()
        settle_buckets(model, torch.randn(8, 4, generator=torch.Generator().manual_seed(0)))
        assert torch.equal(torch.get_rng_state(), generator)
        assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
        return [parameter.grad for parameter in model.parameters()]

    assert spawn(work) == [[None] * 4] * 2


def test_what_one_rank_does_for_all_reaches_all(tmp_path):
    def work(rank):
        return run_on_main(lambda: (tmp_path / f"by {rank}").touch() or f"from {rank}")

    assert spawn(work) == ["from 0", "from 0"]
    assert [path.name for path in tmp_path.iterdir()] == ["by 0"]
    assert run_on_main(lambda: "alone") == "alone"


def test_an_error_of_the_one_rank_is_raised_on_all():
    def work(rank):
        try:
            run_on_main(refuse)
        except ConfigError as error:
            return error.zh

    def refuse():
        raise ConfigError("no", "不")

    assert spawn(work) == ["不", "不"]
    with pytest.raises(RankFailed, match="rank 0 failed first"):
        spawn(lambda rank: run_on_main(lambda: 1 / 0))
