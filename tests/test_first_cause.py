"""What `spawn` says when a launch goes wrong: which rank was first, why, and where in the learner's code."""

import ctypes
import errno
import os
import pickle
import re
import resource
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from ddp_src import LaunchRefused, RankFailed, RanksStuck, TimeLimitReached, launch, spawn
from ddp_src._reports import Failure, Standing


def failure(fn, args=(), nprocs=2, **options):
    with pytest.raises(RankFailed) as caught:
        spawn(fn, args, nprocs, **options)
    return caught.value


def where_ranks_stood(fn, nprocs=2, **options):
    """The lines about ranks of a `RanksStuck`, without the folder of this file."""
    options = {"timeout": 0.5, **options}
    with pytest.raises(RanksStuck) as caught:
        spawn(fn, (), nprocs, **options)
    head_en, head_zh, *lines = str(caught.value).splitlines()
    timeout = f"{options['timeout']:g}"
    assert head_en == f"a rank waited more than {timeout} s in a collective that the others did not join"
    assert head_zh == f"有 rank 在一次集合通信里等了超过 {timeout} 秒，而别的 rank 没有来"
    return [re.sub(r"File .*, line \d+, in ", "", line) for line in lines]


def wait_for_the_others():
    dist.all_reduce(torch.ones(1))


# --- how rank 1 can die while rank 0 sits in a collective, and what a learner reads then -----------------

FAULTS = []
FATES = (
    "rank 0 was ended with it · rank 0 随之结束",
    "rank 0 stopped because a peer was gone · rank 0 因对端已断开而停止",
)


def reads(text):
    """Decorates a fault with what `spawn` says of it, but for places of files and the lines that follow."""

    def note(fault):
        FAULTS.append(pytest.param(fault, text.strip("\n").splitlines(), id=fault.__name__))
        return fault

    return note


@reads("""
rank 1 failed first · rank 1 最先出错
ZeroDivisionError: division by zero
  work
    return fault()
  an_exception
    return 1 / 0
""")
def an_exception():
    return 1 / 0


@reads("""
rank 1 failed first · rank 1 最先出错
ended with exit code 3
""")
def an_exit_code():
    os._exit(3)


@reads("""
rank 1 failed first · rank 1 最先出错
ended with exit code 0
""")
def an_exit_without_a_result():
    os._exit(0)


@reads("""
rank 1 failed first · rank 1 最先出错
SystemExit: 7
  work
    return fault()
  an_exit_by_python
    sys.exit(7)
""")
def an_exit_by_python():
    sys.exit(7)


@reads("""
rank 1 failed first · rank 1 最先出错
KeyboardInterrupt
  work
    return fault()
  an_interrupt
    signal.raise_signal(signal.SIGINT)
""")
def an_interrupt():
    signal.raise_signal(signal.SIGINT)


@reads("""
rank 1 failed first · rank 1 最先出错
ended by SIGKILL
memory may have run out; this rank's peak as last seen: … MB
可能是内存不够；最后一次看到的峰值：… MB
""")
def a_sigkill():
    os.kill(os.getpid(), signal.SIGKILL)


@reads("""
rank 1 failed first · rank 1 最先出错
ended by SIGSEGV
""")
def a_segmentation_fault():
    ctypes.string_at(0)


@reads("""
rank 1 failed first · rank 1 最先出错
ended by signal 40
""")
def a_signal_without_a_name():
    os.kill(os.getpid(), 40)


@reads("""
rank 1 failed first · rank 1 最先出错
ended by SIGABRT; the last that it printed · 它最后打印的是:
    out of luck
""")
def an_abort_with_last_words():
    os.write(2, b"out of luck\n")
    os.abort()


@reads("""
rank 1 failed first · rank 1 最先出错
ModuleNotFoundError: No module named 'no_such'
  work
    return fault()
  an_import
    import no_such  # noqa: F401
""")
def an_import():
    import no_such  # noqa: F401


class Untransportable(Exception):
    def __init__(self):
        super().__init__("holds a lock")
        self.lock = threading.Lock()


@reads("""
rank 1 failed first · rank 1 最先出错
Untransportable: holds a lock
  work
    return fault()
  an_exception_that_cannot_be_pickled
    raise Untransportable
""")
def an_exception_that_cannot_be_pickled():
    raise Untransportable


class NoText(Exception):
    def __str__(self):
        raise RuntimeError("no text")


@reads("""
rank 1 failed first · rank 1 最先出错
NoText: (its message cannot be shown: RuntimeError)
  work
    return fault()
  an_exception_without_a_text
    raise NoText
""")
def an_exception_without_a_text():
    raise NoText


@reads("""
rank 1 failed first · rank 1 最先出错
OSError: caf\\udce9
  work
    return fault()
  a_message_that_is_no_text
    raise OSError("caf\\udce9")
""")
def a_message_that_is_no_text():
    raise OSError("caf\udce9")


@reads("""
rank 1 failed first · rank 1 最先出错
OSError: Connection reset
  work
    return fault()
  an_error_like_that_of_a_lost_peer
    raise OSError("Connection reset")
""")
def an_error_like_that_of_a_lost_peer():
    raise OSError("Connection reset")


@reads("""
rank 1 failed first · rank 1 最先出错
TimeoutError: timed out waiting
  work
    return fault()
  an_error_like_a_timeout
    raise TimeoutError("timed out waiting")
""")
def an_error_like_a_timeout():
    raise TimeoutError("timed out waiting")


@reads("""
rank 1 failed first · rank 1 最先出错
TypeError: the return value, a lock, cannot be sent to the notebook (cannot pickle '_thread.lock' object): \
return numbers, strings, tensors, or lists and dicts of them
""")
def a_result_that_cannot_be_pickled():
    return threading.Lock()


class Explosive:
    def __reduce__(self):
        raise ValueError("not today")


@reads("""
rank 1 failed first · rank 1 最先出错
TypeError: the return value, a Explosive, cannot be sent to the notebook (not today): \
return numbers, strings, tensors, or lists and dicts of them
""")
def an_exception_while_the_result_is_sent():
    return Explosive()


@pytest.mark.parametrize(("fault", "text"), FAULTS)
def test_the_rank_that_died_is_told_and_not_its_victim(fault, text):
    def work(rank):
        if rank == 1:
            return fault()
        return wait_for_the_others()

    error = failure(work, timeout=60)
    *lines, fate, log = re.sub(r"File .*, line \d+, in |[\d,]+(?= MB)", shorten, str(error)).splitlines()
    assert lines == text
    assert fate in FATES
    assert log.startswith("log · 日志: ")
    assert error.rank == 1
    assert f"{error.error_type}: {error.message}".startswith(text[1].partition(";")[0])


def shorten(match):
    return "" if match[0].startswith("File") else "…"


def test_the_text_leads_with_the_cause_and_the_learners_line():
    def work(rank):
        if rank == 1:
            deeper()
        wait_for_the_others()

    def deeper():
        raise ValueError("the loss is nan")

    lines = str(failure(work)).splitlines()
    assert lines[0] == "rank 1 failed first · rank 1 最先出错"
    assert lines[1] == "ValueError: the loss is nan"
    assert [line.strip() for line in lines[3:6:2]] == ["deeper()", 'raise ValueError("the loss is nan")']
    assert [line.rsplit(" in ", 1)[1] for line in lines[2:6:2]] == ["work", "deeper"]
    assert lines[6] == "rank 0 was ended with it · rank 0 随之结束"
    assert lines[7].startswith("log · 日志: ")
    log = lines[7].removeprefix("log · 日志: ")
    with open(log, encoding="utf-8") as file:
        assert file.read().rstrip().endswith("ValueError: the loss is nan")
    assert len(lines) == 8


def test_a_rank_that_died_without_a_word_is_quoted():
    def work(rank):
        print("loading", flush=True)
        if rank == 1:
            os._exit(5)
        wait_for_the_others()

    lines = str(failure(work)).splitlines()
    assert lines[1] == "ended with exit code 5; the last that it printed · 它最后打印的是:"
    assert lines[2] == "    loading"


def wait_for(path):
    while not path.exists():
        time.sleep(0.001)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("reason", ["early", "connection refused by x", "timed out waiting for x"])
def test_of_two_failures_the_earlier_one_is_told(first, reason, tmp_path):
    def work(rank):
        if rank == first:
            (tmp_path / "early").touch()
            raise RuntimeError(reason)
        wait_for(tmp_path / "early")
        time.sleep(0.05)
        raise RuntimeError("late")

    error = failure(work)
    assert (error.rank, error.message) == (first, reason)


@pytest.mark.parametrize("passed_on", [False, True])
@pytest.mark.parametrize("debug", [False, True])
def test_a_cause_that_comes_to_light_after_its_victims_complaint_is_told(debug, passed_on, tmp_path):
    def work(rank):
        if rank == 1:
            wait_for(tmp_path / "joined")  # else rank 0 may not even come to its waiting
            dist.destroy_process_group()  # as its death would, this ends the other rank's waiting
            wait_for(tmp_path / "complaint")
            time.sleep(0.3)
            os._exit(3)
        (tmp_path / "joined").touch()
        try:
            wait_for_the_others()
        except RuntimeError as error:
            if passed_on:
                raise ValueError("training failed") from error
            raise
        finally:
            (tmp_path / "complaint").touch()

    error = failure(work, debug=debug)
    assert (error.rank, error.error_type) == (1, "ended with exit code 3")
    assert "rank 0 stopped because a peer was gone · rank 0 因对端已断开而停止" in str(error)


def test_collectives_of_different_size_end_the_launch():
    error = failure(lambda rank: dist.all_reduce(torch.ones(3 + 1000 * rank)))
    assert error.error_type == "ended by SIGABRT"
    assert "Received data size doesn't match expected size" in error.message


def test_debug_names_both_collectives_of_a_mismatch():
    def work(rank):
        if rank == 0:
            dist.all_reduce(torch.ones(3))
        else:
            dist.broadcast(torch.ones(3), src=0)

    error = failure(work, debug=True)
    assert error.error_type == "RuntimeError"
    assert "Detected mismatch between collectives on ranks" in error.message
    assert "OpType=ALLREDUCE" in error.message and "OpType=BROADCAST" in error.message


class Foreign:
    """Can be read back where it was written, and nowhere else."""

    def __reduce__(self):
        return (eval, (f"None if __import__('os').getpid() == {os.getpid()} else 1 / 0",))


def test_a_result_that_cannot_be_read_back_is_told():
    lines = str(failure(lambda rank: Foreign() if rank == 1 else rank)).splitlines()
    assert lines[:3] == [
        "rank 1 failed first · rank 1 最先出错",
        "ZeroDivisionError: the return value cannot be read here (division by zero): "
        "return numbers, strings, tensors, or lists and dicts of them",
        "rank 0 had returned · rank 0 已经返回",
    ]


def test_that_memory_ran_out_is_said_where_the_system_counts_it(monkeypatch):
    counts = iter((3, 4))
    monkeypatch.setattr("ddp_src._watch.oom_kills", lambda: next(counts))
    lines = str(failure(lambda rank: os.kill(os.getpid(), signal.SIGKILL), nprocs=1)).splitlines()
    assert [re.sub(r"[\d,]+ MB", "… MB", line) for line in lines[2:4]] == [
        "memory ran out, and the system ended this rank; this rank's peak as last seen: … MB",
        "内存耗尽，系统结束了这个 rank；最后一次看到的峰值：… MB",
    ]


def test_that_a_system_which_killed_before_is_not_blamed(monkeypatch):
    monkeypatch.setattr("ddp_src._watch.oom_kills", lambda: 3)
    lines = str(failure(lambda rank: os.kill(os.getpid(), signal.SIGKILL), nprocs=1)).splitlines()
    assert lines[2].startswith("memory may have run out")


def test_an_endless_recursion_is_a_short_text():
    def work(rank):
        return work(rank)

    text = str(failure(work, nprocs=1))
    assert "RecursionError: maximum recursion depth exceeded" in text
    assert "calls not shown" in text
    assert len(text.splitlines()) < 30


def test_of_a_long_message_the_middle_is_left_out(tmp_path):
    def work(rank):
        raise ValueError("\n".join(["wide " * 1_000, *map(str, range(1_000))]))

    failed = failure(work, nprocs=1, log_dir=tmp_path)
    lines = str(failed).splitlines()
    assert lines[1] == f"ValueError: {'wide ' * 1_000}"[: len("ValueError: ") + 2_000] + " …"
    assert lines[20:23] == ["18", "… lines not shown: 961 · 省略 961 行", "980"]
    assert "\n500\n" in failed.message
    assert "\n500\n" in (tmp_path / "rank0.log").read_text()


def test_a_loader_worker_that_is_killed_is_told_with_the_learners_line():
    class Deadly(Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            if index == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return index

    def work(rank):
        for _ in DataLoader(Deadly(), num_workers=1):
            pass

    failed = failure(work)
    assert failed.error_type == "RuntimeError"
    assert failed.message.startswith("DataLoader worker (pid")
    assert "for _ in DataLoader(Deadly(), num_workers=1):" in str(failed)


def test_an_error_that_a_signal_handler_raises_meanwhile_is_told():
    def work(rank):
        def handler(*args):
            raise RuntimeError("a worker was killed")

        class PipeBroke(Exception):
            @property
            def __cause__(self):  # Python asks for it when it describes the error
                signal.raise_signal(signal.SIGCHLD)

        signal.signal(signal.SIGCHLD, handler)
        raise PipeBroke

    failed = failure(work, nprocs=1)
    assert (failed.error_type, failed.message) == ("RuntimeError", "a worker was killed")
    assert "raise PipeBroke" in str(failed)


def test_a_full_disk_hides_no_cause(monkeypatch):
    def work(rank):
        raise ValueError("no loss")

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(launch, "open", full, raising=False)
    assert failure(work, nprocs=1).message == "no loss"


def test_a_result_that_finds_no_room_is_told_with_its_size_and_folder():
    def work(rank):
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        return bytes(1_000_000)

    failed = failure(work, nprocs=1)
    assert failed.error_type == "OSError"
    assert re.match(r"the return value \(1\.0 MB\) cannot be written to /.* File too large", failed.message)


@pytest.mark.parametrize(
    "error",
    [
        LaunchRefused("no", "不"),
        RankFailed(Failure(1, "ValueError", "no loss"), [], Path("rank1.log")),
        RanksStuck([Standing(0, "returned")], 1),
        TimeLimitReached([Standing(0, "returned")], 1),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_a_launch_passes_between_processes(error):
    passed = pickle.loads(pickle.dumps(error))
    assert type(passed) is type(error)
    assert (str(passed), vars(passed)) == (str(error), vars(error))


def test_the_group_cannot_be_joined_twice():
    error = failure(lambda rank: dist.init_process_group("gloo"))
    assert error.message == "trying to initialize the default process group twice!"


def test_a_module_edited_after_a_failure_is_quoted_as_it_is_now(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(tmp_path)
    source = tmp_path / "faulty_module.py"
    source.write_text("def work(rank):\n    return 1 / 0\n")
    import faulty_module

    assert "\n    return 1 / 0\n" in str(failure(faulty_module.work))
    source.write_text("def work(rank):\n    return [][rank]\n")
    assert "\n    return [][rank]\n" in str(failure(faulty_module.work))


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_a_child_that_outlives_its_rank_hides_nothing(start_method):
    def work(rank):
        if rank == 1:
            if os.fork() == 0:
                time.sleep(1000)  # holds whatever the rank held open
            os._exit(4)
        wait_for_the_others()

    assert failure(work, timeout=60, start_method=start_method).error_type == "ended with exit code 4"


# --- hangs ------------------------------------------------------------------------------------------------


def test_a_skipped_collective_is_told_with_every_ranks_place():
    def work(rank):
        if rank == 0:
            dist.all_reduce(torch.ones(1))

    assert where_ranks_stood(work) == [
        "rank 0: in all_reduce, work",
        "    dist.all_reduce(torch.ones(1))",
        "    last collective · 最后的集合通信: #1 all_reduce, Float [1]",
        "rank 1: fn returned · 函数已经返回",
    ]


def test_ranks_that_wait_in_different_collectives_are_told_with_both():
    def work(rank):
        dist.all_reduce(torch.ones(2, 3, dtype=torch.int64))
        if rank == 0:
            dist.barrier()
        else:
            dist.all_gather([torch.ones(2), torch.ones(2)], torch.ones(2))

    assert where_ranks_stood(work) == [
        "rank 0: in barrier, work",
        "    dist.barrier()",
        "    last collective · 最后的集合通信: #2 barrier",
        "rank 1: in all_gather, work",
        "    dist.all_gather([torch.ones(2), torch.ones(2)], torch.ones(2))",
        "    last collective · 最后的集合通信: #2 all_gather, Float [2]",
    ]


def test_a_barrier_for_one_rank_and_a_rank_asleep():
    def work(rank):
        if rank == 0:
            dist.barrier()
        time.sleep(1000)

    assert where_ranks_stood(work) == [
        "rank 0: in barrier, work",
        "    dist.barrier()",
        "    last collective · 最后的集合通信: #1 barrier",
        "rank 1: work",
        "    time.sleep(1000)",
    ]


def test_a_rank_that_holds_the_gil_can_say_where_it_stands():
    def 等待(rank):
        if rank == 1:
            ctypes.PyDLL(None).sleep(1000)
        wait_for_the_others()

    lines = where_ranks_stood(等待)
    assert lines[0] == "rank 0: in all_reduce, wait_for_the_others"
    assert lines[3:] == ["rank 1: 等待", "    ctypes.PyDLL(None).sleep(1000)"]


def test_a_rank_that_a_signal_has_stopped_is_told_as_that():
    def work(rank):
        if rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        wait_for_the_others()

    assert where_ranks_stood(work)[3:] == ["rank 1: stopped by a signal · 被信号暂停"]


def test_a_rank_that_nccls_watchdog_ended_waited_too_long():
    def work(rank):
        if rank == 1:
            print("[rank1]:[E1130] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8)")
            print("and twenty lines of C++\n" * 20)
            sys.stdout.flush()
            os.abort()
        time.sleep(1000)

    assert where_ranks_stood(work) == ["rank 0: work", "    time.sleep(1000)", "rank 1: failed · 出错"]


def test_one_batch_too_many_on_one_rank():
    def work(rank):
        model = DistributedDataParallel(nn.Linear(1, 1))
        for _ in range(2 + rank):
            model(torch.ones(1, 1)).sum().backward()

    assert where_ranks_stood(work) == [
        "rank 0: fn returned · 函数已经返回",
        "    last collective · 最后的集合通信: #7 all_reduce, Float [2]",
        "rank 1: in backward, work",
        "    model(torch.ones(1, 1)).sum().backward()",
        "    last collective · 最后的集合通信: #8 all_reduce, Float [2]",
    ]


def test_a_timeout_is_told_as_one_whatever_the_learners_code_makes_of_it():
    def work(rank):
        if rank == 1:
            time.sleep(1000)
        try:
            dist.all_reduce(torch.ones(1), async_op=True).wait()
        except RuntimeError as error:
            raise ValueError("training failed") from error

    assert [line[:6] for line in where_ranks_stood(work)[::3]] == ["rank 0", "rank 1"]


@pytest.mark.parametrize("timeout", [60, None])
def test_a_group_with_a_timeout_of_its_own_is_told_with_that(timeout):
    def work(rank):
        group = dist.new_group([0, 1], timeout=timedelta(seconds=0.5))
        if rank == 0:
            dist.all_reduce(torch.ones(1), group=group)
        else:
            time.sleep(1000)

    with pytest.raises(RanksStuck, match=r"a rank waited more than 0\.5 s in a collective"):
        spawn(work, timeout=timeout)


def test_a_barrier_that_gave_up_comes_before_the_one_that_lost_its_peer():
    def work(rank):
        time.sleep(1.5 * rank)
        dist.monitored_barrier(timeout=timedelta(seconds=0.5))

    with pytest.raises(RanksStuck, match=r"a rank waited more than 0\.5 s"):
        spawn(work)


def test_a_hang_in_debug_mode_and_with_three_ranks():
    def work(rank):
        if rank == 1:
            time.sleep(1000)
        dist.all_reduce(torch.ones(1))

    for options in ({"debug": True}, {"nprocs": 3}):
        lines = where_ranks_stood(work, **options)
        assert lines[0] == "rank 0: in all_reduce, work"
        assert lines[lines.index("rank 1: work") + 1] == "    time.sleep(1000)"


def test_ranks_that_compute_alone_for_longer_than_the_timeout_are_left_in_peace():
    def work(rank):
        until = time.monotonic() + 0.6
        while time.monotonic() < until:
            torch.ones(10).sum()
        return rank

    assert spawn(work, timeout=0.3) == [0, 1]
    assert spawn(work, timeout=None) == [0, 1]


@pytest.mark.parametrize("limit", [0.4, 0.001])
def test_a_time_limit_ends_the_launch(limit):
    with pytest.raises(TimeLimitReached) as caught:
        spawn(lambda rank: time.sleep(1000), time_limit=limit)
    lines = str(caught.value).splitlines()
    assert lines[:2] == [
        f"not done after {limit} s: all ranks were ended",
        f"{limit} 秒内没有做完：所有 rank 都已结束",
    ]
    assert [line.split(":")[0] for line in lines if line.startswith("rank")] == ["rank 0", "rank 1"]
