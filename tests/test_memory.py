"""What the launcher reads of memory: a process's peak, and how often the system killed for want of it."""

import os

import pytest

from ddp_src._memory import oom_kills, peak_mb


@pytest.fixture
def proc(tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    return tmp_path / "proc"


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_peak_is_that_of_the_process(proc):
    write(proc / "7/status", "Name:\tpython\nVmPeak:\t  9999999 kB\nVmHWM:\t    2048 kB\nVmRSS:\t 1 kB\n")
    assert peak_mb(7, proc) == 2.0


def test_a_process_that_has_ended_has_no_peak(proc):
    write(proc / "7/status", "Name:\tpython\nState:\tZ (zombie)\n")
    assert peak_mb(7, proc) is None
    assert peak_mb(8, proc) is None


def test_this_process_has_one():
    assert peak_mb(os.getpid()) > 1


def test_kills_are_counted_in_the_groups_own_file_of_version_2(proc, tmp_path):
    write(proc / "self/cgroup", "0::/user/job 1\n")
    write(tmp_path / "cgroups/user/job 1/memory.events", "low 0\nhigh 5\nmax 9\noom 4\noom_kill 3\n")
    assert oom_kills(proc, tmp_path / "cgroups") == 3


def test_kills_are_counted_in_version_1(proc, tmp_path):
    write(proc / "self/cgroup", "5:devices:/\n4:memory:/job\n0::/\n")
    write(tmp_path / "cgroups/memory/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert oom_kills(proc, tmp_path / "cgroups") == 2


def test_what_cannot_be_read_is_not_known(proc, tmp_path):
    assert oom_kills(proc, tmp_path) is None
    write(proc / "self/cgroup", "0::/../elsewhere\n")
    assert oom_kills(proc, tmp_path) is None
