"""Chapter 02: what each way to start ranks does with the parent's things, and its faults are as it says."""

import _thread
import functools
import multiprocessing
import os
import subprocess
import sys
import threading

import pytest
import torch
import torch.multiprocessing as mp

from ddp_src import LaunchRefused, RankFailed, check, spawn, start_methods
from ddp_src.lessons import processes
from ddp_src.terminal import terminal

linux = pytest.mark.skipif(sys.platform != "linux", reason="the warm server is for Linux")


@pytest.fixture(scope="module")
def ways():
    tried = spawn(start_methods.try_each, nprocs=1, backend="gloo", show=False)[0]
    return {way.name: way for way in [*tried, start_methods.try_way(start_methods.OURS)]}


@pytest.fixture
def warm(monkeypatch):
    """Let torch.multiprocessing.spawn fork its ranks from the warm server: a cold start takes seconds."""
    start = functools.partial(mp.start_processes, start_method="forkserver")
    monkeypatch.setattr(mp, "spawn", lambda fn, args, nprocs: start(fn, args, nprocs))


# --- what is inherited


def test_two_ranks_append_to_lists_of_their_own_and_add_to_one_tensor():
    seen, total = [], torch.zeros(1)
    mp.spawn(processes.touch, (seen, total), nprocs=2)
    assert seen == []
    assert total.item() == 2
    assert total.is_shared()


@linux
def test_what_became_of_each_thing(ways):
    fates = {name: list(way.fate.values())[:-1] for name, way in ways.items()}
    assert list(ways["fork"].fate) == [
        "list argument",
        "tensor argument",
        "parent's variable",
        "function of a cell",
        "random state",
        "open file",
        "thread",
        "CUDA context",
    ]
    fresh = ["copied", "shared", "absent", "refused", "absent", "refused", "absent"]
    assert fates == {
        "fork": ["copied", "copied", "copied", "copied", "copied", "shared", "absent"],
        "forkserver": fresh,
        "spawn": fresh,
        "ddp_src.spawn": ["copied", "copied", "absent", "copied", "absent", "refused", "absent"],
    }


@linux
def test_without_a_gpu_the_probe_says_so(ways):
    there = "absent" if torch.cuda.is_available() else "no GPU"
    fates = {name: way.fate["CUDA context"] for name, way in ways.items()}
    built_with_cuda = torch.version.cuda is not None
    assert fates.pop("fork") == ("refused" if built_with_cuda else "no GPU")
    assert set(fates.values()) == {there}


@linux
def test_a_model_among_the_arguments_is_one_model_for_all_ranks(ways):
    assert {name: way.weight for name, way in ways.items()} == {
        "fork": 0,
        "forkserver": -2,
        "spawn": -2,
        "ddp_src.spawn": 0,
    }


@linux
def test_a_rank_that_loads_torch_itself_has_far_more_memory_of_its_own(ways):
    memory = {name: way.private_mb for name, way in ways.items()}
    assert 0 < memory["fork"] < memory["ddp_src.spawn"] < 100 < memory["spawn"]
    assert memory["forkserver"] > 100
    assert all(way.seconds > 0 for way in ways.values())


def test_trying_a_way_leaves_nothing_in_the_parent(ways):
    assert start_methods.SETTINGS == {}
    assert not hasattr(sys.modules["__main__"], "from_a_cell")


@pytest.mark.parametrize(
    ("system", "known", "tried"),
    [
        ("linux", ["fork", "spawn", "forkserver"], ["fork", "forkserver", "spawn"]),
        ("darwin", ["spawn", "fork", "forkserver"], ["forkserver", "spawn"]),
        ("win32", ["spawn"], ["spawn"]),
    ],
)
def test_fork_is_tried_only_where_it_is_known_and_safe(system, known, tried, monkeypatch):
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: known)
    monkeypatch.setattr(start_methods, "try_way", lambda name: name)
    assert start_methods.try_each(0) == tried
    assert start_methods.can_fork() == ("fork" in tried)


# --- the launcher of a dozen lines


def say_numbers(rank):
    print("printed", rank)
    return [os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")]


def test_the_launcher_returns_what_every_rank_returned_and_loses_no_print(capsys, monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # with it nothing waits to be flushed
    with terminal():
        assert processes.launch(say_numbers, 2) == [["0", "0", "2"], ["1", "1", "2"]]
    assert sorted(capsys.readouterr().out.splitlines()) == ["terminal | printed 0", "terminal | printed 1"]


@linux
@pytest.mark.parametrize("start", [processes.launch, functools.partial(spawn, backend="gloo", show=False)])
def test_the_ranks_find_one_another_in_three_ways(start, warm):
    assert start(processes.meet, nprocs=2) == [{"file": 2.0, "TCP": 2.0, "environment": 2.0}] * 2


def test_every_rank_says_where_it_stands(capsys):
    spawn(processes.introduce, nprocs=2, backend="gloo")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("[rank")]
    assert sorted(lines) == [
        f"[rank {rank}] RANK={rank} LOCAL_RANK={rank} WORLD_SIZE=2 on cpu" for rank in (0, 1)
    ]


# --- what goes wrong


def test_a_function_of_main_is_not_found_by_a_fresh_python(capsys, monkeypatch):
    main = sys.modules["__main__"]
    space = {"__name__": "__main__"}
    exec("def hello(rank): print('hello')", space)
    monkeypatch.setattr(main, "hello", space["hello"], raising=False)
    monkeypatch.delattr(main, "__file__", raising=False)  # as in a kernel, and pytest's is not run again
    monkeypatch.setattr(main, "__spec__", None, raising=False)
    with pytest.raises(mp.ProcessExitedException, match="exit code 1"), terminal():
        mp.spawn(space["hello"], nprocs=1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "terminal | Traceback (most recent call last):"
    assert "AttributeError" in lines[-1]
    assert "'hello'" in lines[-1]
    assert spawn(space["hello"], nprocs=2, show=False) == [None, None]


needs_fork = pytest.mark.skipif(not start_methods.can_fork(), reason="no fork on Windows, none safe on macOS")


@needs_fork
def test_readers_forked_after_the_file_was_opened_spoil_each_others_reading():
    tries = [spawn(processes.open_then_fork, nprocs=1, backend="gloo", show=False)[0] for _ in range(3)]
    assert any(got != "5,000 images" for readers in tries for got in readers)


@needs_fork
def test_readers_that_open_the_file_themselves_read_all_of_it():
    assert spawn(processes.fork_then_open, nprocs=1, backend="gloo", show=False) == [["5,000 images"] * 2]


@linux
def test_plain_spawn_blames_the_rank_that_waited(warm):
    with pytest.raises(mp.ProcessRaisedException) as caught:
        processes.launch(processes.leave_early, 2)
    message = str(caught.value)
    assert "Process 0 terminated" in message
    assert "by peer" in message
    assert "Process 1" not in message


def test_spawn_names_the_rank_that_left():
    with pytest.raises(RankFailed) as caught:
        spawn(processes.leave_early, nprocs=2, backend="gloo", show=False)
    assert (caught.value.rank, caught.value.error_type) == (1, "SystemExit")


def test_one_rank_more_than_there_are_gpus_is_refused():
    with pytest.raises(LaunchRefused):
        spawn(processes.introduce, nprocs=torch.cuda.device_count() + 1, backend="nccl")


def test_an_interrupt_leaves_no_rank():
    threading.Timer(0.2, _thread.interrupt_main).start()
    with pytest.raises(KeyboardInterrupt):
        spawn(processes.work_on, nprocs=2, show=False)
    assert mp.active_children() == []


# --- what goes to the terminal


def test_both_streams_of_a_child_are_shown_with_short_paths(capsys):
    code = "import sys; print('out'); print('  File \"/a/b/torch/spawn.py\", line 3', file=sys.stderr)"
    with terminal():
        subprocess.run([sys.executable, "-c", code], check=True)
    assert sorted(capsys.readouterr().out.splitlines()) == [
        'terminal |   File "…/torch/spawn.py", line 3',
        "terminal | out",
    ]


def test_what_was_printed_before_and_after_is_left_alone(capfd):
    os.write(1, b"before\n")
    with terminal():
        os.write(1, b"inside\n")
    os.write(1, b"after\n")
    assert sorted(capfd.readouterr().out.splitlines()) == ["after", "before", "terminal | inside"]


# --- the exercise


@pytest.fixture
def told(capsys):
    """Check an answer to processes-1; the English and the Chinese line."""

    def run(fn):
        capsys.readouterr()
        check("processes-1", fn)
        return capsys.readouterr().out.splitlines()

    return run


def test_the_right_answer_is_right_also_with_divmod(told):
    assert told(lambda rank, world_size, ranks_per_node: divmod(rank, ranks_per_node)) == [
        "✓ processes-1: right in all 3 cases, on 2 ranks.",
        "✓ processes-1：2 个 rank、3 组数据，全对。",
    ]


def test_an_open_exercise_is_not_yet_answered(told):
    assert told(lambda rank, world_size, ranks_per_node: ...) == [
        "○ processes-1: not yet: write `place(rank, world_size, ranks_per_node)`, then run this cell again.",
        "○ processes-1：还没写：写好 `place(rank, world_size, ranks_per_node)`，再运行一次这个单元格。",
    ]


def test_quotient_and_remainder_swapped(told):
    assert told(lambda rank, world_size, ranks_per_node: (rank % ranks_per_node, rank // ranks_per_node)) == [
        "✗ processes-1: with 4 ranks per node, rank 1 of 8 landed on node 1: neighbours share a node; "
        "you give (1, 0), it is (0, 1).",
        "✗ processes-1：每个节点有 4 个 rank，rank 1 却落在了节点 1 上：编号相邻的 rank 在同一个节点；"
        "你给出 (1, 0)，应该是 (0, 1)。",
    ]


def test_divided_by_the_world_size(told):
    assert told(lambda rank, world_size, ranks_per_node: (rank // world_size, rank % world_size)) == [
        "✗ processes-1: all 8 ranks are on node 0, the last as local rank 7: a node has only 4, "
        "so rank 7 is on node 1.",
        "✗ processes-1：8 个 rank 全在节点 0 上，最后一个的 local rank 是 7：一个节点只有 4 个 rank，"
        "rank 7 应该在节点 1 上。",
    ]


def test_any_other_pair_is_named_beside_the_right_one(told):
    def place(rank, world_size, ranks_per_node):
        return rank // ranks_per_node, rank

    assert told(place) == [
        "✗ processes-1: for rank 4 of 8, 4 per node, you give (1, 4), but it is on node 1 with local rank 0.",
        "✗ processes-1：共 8 个 rank、每个节点 4 个时，你给 rank 4 的是 (1, 4)，"
        "而它在节点 1 上，local rank 是 0。",
    ]


@pytest.mark.parametrize(
    ("value", "english", "chinese"),
    [
        (
            None,
            "your function returns None where a pair (node, local rank) is expected: is `return` missing?",
            "你的函数返回了 None，而这里要的是一对数（节点，local rank）：是不是漏写了 `return`？",
        ),
        (
            3,
            "your function returns 3 where a pair (node, local rank) is expected.",
            "你的函数返回了 3，而这里要的是一对数（节点，local rank）。",
        ),
        (
            (0.25, 1),
            "your function returns (0.25, 1): node and local rank are whole numbers, `//` gives one.",
            "你的函数返回了 (0.25, 1)：节点和 local rank 都是整数；整除要用 `//`。",
        ),
    ],
)
def test_a_value_that_is_no_pair_of_whole_numbers_is_named(value, english, chinese, told):
    def place(rank, world_size, ranks_per_node):
        result = value
        return result

    assert told(place) == [f"✗ processes-1: {english}", f"✗ processes-1：{chinese}"]
