"""`spawn`: results, what travels to the ranks and back, what they see, and what is refused."""

import atexit
import errno
import gc
import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ddp_src import LaunchRefused, _folder, distributed, launch, spawn


@pytest.mark.parametrize("ranks", [1, 2, 4, 16])
def test_results_come_in_rank_order_from_a_joined_group(ranks):
    def work(rank):
        total = torch.tensor(10.0 + rank)
        dist.all_reduce(total)
        told = [int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")]
        return rank, dist.get_rank(), dist.get_world_size(), told, total.item()

    total = 10.0 * ranks + sum(range(ranks))
    assert spawn(work, nprocs=ranks) == [
        (rank, rank, ranks, [rank, rank, ranks, ranks], total) for rank in range(ranks)
    ]


def test_without_nprocs_there_are_two_ranks_on_a_machine_without_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert spawn(lambda rank: dist.get_backend()) == ["gloo", "gloo"]


def train_one_step(rank):
    """One SGD step on `rank` + 1: the mean gradient of y = w·x over two ranks is 1.5."""
    model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    nn.init.constant_(model.weight, float(rank))  # DDP starts all ranks from rank 0's weights
    ddp = DistributedDataParallel(model)
    ddp.loop = ddp  # a cycle, which only the garbage collector ends
    ddp(torch.full((1, 1), rank + 1.0, dtype=torch.float64)).sum().backward()
    torch.optim.SGD(ddp.parameters(), lr=1.0).step()
    global alive
    alive = ddp
    destroy, dist.destroy_process_group = dist.destroy_process_group, lambda: (print("left"), destroy())
    atexit.register(print, "torch's own exit", flush=True)
    return model.weight.item()


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_ddp_trains_and_the_ranks_end_in_peace(start_method, monkeypatch, tmp_path):
    codes = []
    end_all = launch.end_all

    def recorded(processes):
        codes.extend(process.exitcode for process in processes)
        end_all(processes)

    monkeypatch.setattr(launch, "end_all", recorded)
    assert spawn(train_one_step, start_method=start_method, log_dir=tmp_path) == [-1.5, -1.5]
    assert codes == [0, 0]
    for rank in (0, 1):  # a DDP object that outlives its group can abort the process that exits as usual
        log = (tmp_path / f"rank{rank}.log").read_text()
        assert [line for line in log.splitlines() if not line.startswith("[Gloo]")] == ["left"]


def test_lambdas_closures_and_cell_like_classes_travel_both_ways():
    class Point:
        def __init__(self, x):
            self.x = x

    offset = 7
    points = spawn(lambda rank, point: Point(point.x + rank + offset), (Point(1),))
    assert [type(point) for point in points] == [Point, Point]
    assert [point.x for point in points] == [8, 9]


def test_every_rank_gets_copies_of_tensors_and_modules():
    def one_sgd_step(rank, model, tensor):
        tensor += 1
        model(torch.ones(1, 1)).sum().backward()
        torch.optim.SGD(model.parameters(), lr=1.0).step()
        dist.barrier()
        return model.weight.item(), tensor.item()

    model, tensor = nn.Linear(1, 1, bias=False), torch.tensor(5.0)
    nn.init.zeros_(model.weight)
    model.share_memory()
    assert spawn(one_sgd_step, (model, tensor)) == [(-1.0, 6.0), (-1.0, 6.0)]
    assert (model.weight.item(), tensor.item()) == (0.0, 5.0)


def test_large_results_come_back_whole():
    small, large = spawn(lambda rank: torch.full((1 + rank * 24_999_999,), rank, dtype=torch.float64))
    assert small.tolist() == [0.0]
    assert (large.nbytes, large.sum().item()) == (200_000_000, 25e6)


def test_the_group_may_be_left_by_the_function_itself(capfd):
    def leaves(rank):
        dist.barrier()
        dist.destroy_process_group()
        return rank

    assert spawn(leaves) == [0, 1]
    assert "Traceback" not in capfd.readouterr().out


def test_ranks_see_this_moment_of_their_caller(monkeypatch, tmp_path):
    folder = tmp_path / "当前 folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.setenv("SEEN", "first")
    (folder / "lesson_module.py").write_text("answer = 'one'\n")

    def look(rank):
        import lesson_module  # found through "", which means the folder that is current now

        return os.environ.get("SEEN"), os.getcwd(), lesson_module.answer

    assert spawn(look) == [("first", str(folder), "one")] * 2
    monkeypatch.setenv("SEEN", "second")
    (folder / "lesson_module.py").write_text("answer = 'changed'\n")
    assert spawn(look) == [("second", str(folder), "changed")] * 2
    monkeypatch.delenv("SEEN")
    assert spawn(lambda rank: "SEEN" in os.environ) == [False, False]


def test_a_module_of_the_learner_is_read_anew_at_each_launch(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(tmp_path)
    source = tmp_path / "learners_module.py"
    source.write_text("def work(rank):\n    return 'before'\n")
    import learners_module

    assert spawn(learners_module.work) == ["before", "before"]
    source.write_text("def work(rank):\n    return 'after the edit'\n")
    assert spawn(learners_module.work) == ["after the edit", "after the edit"]


def test_each_rank_computes_with_its_share_of_the_cores(monkeypatch):
    def threads(rank):
        return torch.get_num_threads()

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(distributed, "usable_cores", lambda: 8)
    assert spawn(threads, nprocs=2) == [4, 4]
    assert spawn(threads, nprocs=3) == [2, 2, 2]
    monkeypatch.setattr(distributed, "usable_cores", lambda: 1)
    assert spawn(threads, nprocs=2) == [1, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert spawn(threads, nprocs=2) == [3, 3]
    monkeypatch.setenv("OMP_NUM_THREADS", "abc")
    assert spawn(threads, nprocs=2) == [1, 1]


def test_warm_ranks_draw_numbers_of_their_own():
    def draw(rank):
        import random

        import numpy

        return torch.rand(1).item(), numpy.random.rand(), random.random()

    draws = [*spawn(draw), *spawn(draw)]
    for kind in zip(*draws, strict=True):
        assert len(set(kind)) == 4  # by itself a forked process goes on with its server's generators


def test_loader_workers_start_as_they_would_in_the_caller():
    class Numbers(torch.utils.data.Dataset):  # as in a cell: no file holds it
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return index + dist.get_rank()

    def load(rank):
        return torch.cat(list(torch.utils.data.DataLoader(Numbers(), num_workers=1))).tolist()

    assert spawn(load) == [[0, 1, 2, 3], [1, 2, 3, 4]]


def test_launches_from_several_threads_do_not_meet(monkeypatch):
    results, starting, together = {}, set(), []

    def slow_warm_up():
        starting.add(threading.get_ident())
        time.sleep(0.05)  # so that others would come in, if they could
        together.append(len(starting))
        starting.discard(threading.get_ident())

    monkeypatch.setattr("ddp_src._start.warm_up", slow_warm_up)

    def launch_from(thread):
        def work(rank):
            total = torch.tensor(float(thread))
            dist.all_reduce(total)
            return total.item()

        results[thread] = spawn(work)

    threads = [threading.Thread(target=launch_from, args=(number,)) for number in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {1: [2.0, 2.0], 2: [4.0, 4.0], 3: [6.0, 6.0]}
    assert together == [1, 1, 1]  # while one starts, the caller's own __main__ is out of sight


def test_a_process_that_was_forked_off_launches_with_a_server_of_its_own():
    spawn(abs)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        assert pool.submit(spawn, abs).result(timeout=60) == [0, 1]
        refused = pool.submit(spawn, abs, nprocs=0).exception(timeout=60)
    assert isinstance(refused, LaunchRefused)
    assert "nprocs is 0" in str(refused)
    assert spawn(abs) == [0, 1]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python has PYTHONSAFEPATH from 3.11 on")
def test_a_file_named_like_a_module_of_python_does_not_stop_the_server(tmp_path):
    (tmp_path / "logging.py").write_text("x = 1")
    program = "import logging, os, sys; from ddp_src import spawn; os.chdir(sys.argv[1]); print(spawn(abs))"
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=60)
    assert done.stdout.splitlines()[-1:] == ["[0, 1]"], done.stderr


def test_a_server_that_ends_meanwhile_is_one_sentence(monkeypatch):
    def ended(*args, **kwargs):
        raise EOFError("unexpected EOF")

    monkeypatch.setattr("torch.multiprocessing.start_processes", ended)
    assert refusal(start_method="forkserver").startswith(
        "the warm server ended while it started the ranks, for which memory or the number of processes may"
    )


def test_a_rank_can_launch_ranks_of_its_own():
    def outer(rank):
        return spawn(lambda inner: (rank, inner, dist.get_world_size()))

    assert spawn(outer, nprocs=1) == [[(0, 0, 2), (0, 1, 2)]]


def test_the_warm_server_has_one_thread_no_gpu_and_none_of_this_project():
    from multiprocessing import forkserver

    assert spawn(lambda rank: "ddp_src.model" in sys.modules, nprocs=1) == [False]
    # What the server loaded is left alone by a rank's collections, which would copy it page by page.
    assert spawn(lambda rank: gc.get_freeze_count() > 100_000, nprocs=1) == [True]
    server = Path(f"/proc/{forkserver._forkserver._forkserver_pid}")
    assert len(list((server / "task").iterdir())) == 1
    assert "/dev/nvidia" not in (server / "maps").read_text()


def say_debug_level(rank):
    return dist.get_debug_level().name


def test_the_debug_level_of_the_environment_is_heard_by_warm_ranks(monkeypatch):
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "INFO")
    assert spawn(say_debug_level) == ["INFO", "INFO"]
    assert spawn(say_debug_level, debug=True) == ["DETAIL", "DETAIL"]
    monkeypatch.delenv("TORCH_DISTRIBUTED_DEBUG")
    assert spawn(say_debug_level) == ["OFF", "OFF"]


def test_a_variable_that_torch_reads_when_it_is_loaded_starts_cold_and_says_so(monkeypatch, capfd):
    def look(rank):
        return "forkserver" in Path("/proc/self/cmdline").read_text(), os.environ.get("TORCH_LOGS")

    monkeypatch.setattr(launch, "_said", set())
    assert spawn(look) == [(True, None)] * 2
    monkeypatch.setenv("TORCH_LOGS", "+ddp_graphs")
    capfd.readouterr()
    assert spawn(look) == [(False, "+ddp_graphs")] * 2
    assert capfd.readouterr().out.splitlines() == [
        "2 ranks · gloo · CPU",
        "cold start, since torch reads TORCH_LOGS only when it is loaded",
        "冷启动：torch 只在加载时读取 TORCH_LOGS",
    ]
    monkeypatch.delenv("TORCH_LOGS")
    assert spawn(look) == [(True, None)] * 2


def test_a_swept_temporary_folder_costs_a_new_server_and_nothing_else():
    assert spawn(lambda rank: rank) == [0, 1]
    shutil.rmtree(_folder.root_folder())
    assert spawn(lambda rank: rank) == [0, 1]


# --- refusals -------------------------------------------------------------------------------------------


def refusal(fn=len, args=(), nprocs=2, **options):
    with pytest.raises(LaunchRefused) as caught:
        spawn(fn, args, nprocs, **options)
    return str(caught.value)


@pytest.fixture
def nothing_starts(monkeypatch):
    def started(*args):
        raise AssertionError("a rank was started")

    monkeypatch.setattr(launch, "start_ranks", started)


@pytest.mark.parametrize("nprocs", [0, -1, True, 2.0, "2"])
def test_a_number_of_ranks_that_is_not_one_is_refused(nprocs, nothing_starts):
    assert refusal(nprocs=nprocs) == (
        f"nprocs is {nprocs!r}: it must be a whole number, 1 or more.\n"
        f"nprocs 是 {nprocs!r}：它必须是不小于 1 的整数。"
    )


def test_more_ranks_than_can_be_started_are_refused(nothing_starts):
    assert refusal(nprocs=1000) == (
        "nprocs is 1000: one machine starts at most 100 ranks.\n"
        "nprocs 是 1000：一台机器最多启动 100 个 rank。"
    )


@pytest.mark.parametrize("value", [0, -1, True, "5", float("nan")])
@pytest.mark.parametrize("name", ["timeout", "time_limit"])
def test_seconds_that_are_none_are_refused(name, value, nothing_starts):
    assert refusal(**{name: value}) == (
        f"{name} is {value!r}: it must be a number of seconds above 0, or None for no limit.\n"
        f"{name} 是 {value!r}：它必须是大于 0 的秒数，不限时则写 None。"
    )


def test_what_is_no_call_is_refused(nothing_starts):
    assert "got 5: pass the function itself" in refusal(fn=5)
    assert "args is a int: it must be a tuple; write one argument as (x,)" in refusal(args=5)
    assert "args is a Tensor" in refusal(args=torch.arange(3))  # which would fall into three arguments
    assert "args is a str" in refusal(args="abc")


def test_what_would_not_run_when_called_is_refused(nothing_starts):
    async def waits(rank):
        return rank

    def yields(rank):
        yield rank

    assert refusal(fn=waits) == (
        "waits is defined with async def, and a call alone would not run it: define it with def.\n"
        "waits 是用 async def 定义的，只调用它并不会运行：请改用 def 定义。"
    )
    assert "yields contains yield, and a call alone would not run it" in refusal(fn=yields)


def test_a_worker_of_a_pool_is_refused(nothing_starts, monkeypatch):
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)
    assert refusal() == (
        "this is a worker of a Pool or of a DataLoader, which may not start processes: "
        "call spawn in the main program.\n"
        "这里是 Pool 或 DataLoader 的工作进程，不允许再启动进程：请在主程序里调用 spawn。"
    )


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_too_few_open_files_are_one_sentence(nothing_starts):
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 30, hard))
    try:
        said = refusal(nprocs=16)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert said == (
        "this process cannot open the files that a launch of 16 needs (Too many open files): use fewer "
        "ranks, or raise the limit with `ulimit -n 4096` before Python starts.\n"
        "启动 16 个 rank 所需的文件无法全部打开（Too many open files）：请减少 rank 数，"
        "或在启动 Python 之前用 `ulimit -n 4096` 提高上限。"
    )


def test_no_place_for_a_folder_is_one_sentence(nothing_starts, monkeypatch):
    def full(**where):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("ddp_src._folder.tempfile.mkdtemp", full)
    assert refusal().startswith(
        "no temporary folder can be made ([Errno 28] No space left on device): free some"
    )


def test_a_full_disk_is_one_sentence(nothing_starts, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    said = refusal()
    assert said.startswith("the function and its arguments (0.0 MB) cannot be written to ")
    assert "(No space left on device): free some space there, or set TMPDIR" in said


def test_a_way_to_start_or_talk_that_is_not_there_is_refused(nothing_starts, monkeypatch):
    assert 'start_method is \'fork\': choose one of "auto", "spawn", "forkserver".' in refusal(
        start_method="fork"
    )
    monkeypatch.setattr("ddp_src._checks.get_all_start_methods", lambda: ["spawn"])  # as on Windows
    assert 'start_method is \'forkserver\': choose one of "auto", "spawn".' in refusal(
        start_method="forkserver"
    )
    assert "there is no backend 'mpi': choose one of auto, gloo, nccl." in refusal(backend="mpi")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert "nccl needs a GPU for each of the 2 ranks and this machine has 1" in refusal(backend="nccl")


def test_what_cannot_travel_is_named(nothing_starts):
    lock = threading.Lock()
    assert refusal(args=(1, lock)) == (
        "args[1] (lock) cannot be sent to the ranks (cannot pickle '_thread.lock' object): "
        "create it inside the function.\n"
        "args[1] (lock) 无法传给各个 rank（cannot pickle '_thread.lock' object）：请在函数里面创建它。"
    )

    def uses_the_lock(rank):
        return lock

    assert "the function 'uses_the_lock' cannot be sent" in refusal(fn=uses_the_lock)


def test_folders_that_cannot_be_used_are_refused(nothing_starts, monkeypatch, tmp_path):
    file = tmp_path / "file"
    file.touch()
    assert f"log_dir {file} cannot be written (File exists): choose another folder." in refusal(log_dir=file)
    assert "log_dir /proc/none cannot be written" in refusal(log_dir="/proc/none")
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert refusal() == (
        "the working folder has been deleted: change to one that exists with os.chdir.\n"
        "当前工作目录已被删除：请先用 os.chdir 换到一个存在的目录。"
    )
