"""What is left after a launch: no rank, no child of a rank, no file, and no open door while it runs."""

import contextlib
import gc
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from ddp_src import RankFailed, _folder, launch, spawn

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

# Each rank has a child of its own; rank 1 then holds the GIL, so that no thread of it can do anything.
SCRIPT = """
import ctypes, multiprocessing, os, subprocess, sys, time
from pathlib import Path
from torch.utils.data import DataLoader
from ddp_src import spawn

def work(rank, folder):
    child = subprocess.Popen(["sleep", "1000"])
    loader = iter(DataLoader(range(9), num_workers=1))
    worker = multiprocessing.active_children()[0]
    note = Path(folder, f"{rank}.part")
    note.write_text(f"{os.getpid()} {child.pid} {worker.pid}")
    note.rename(Path(folder, f"{rank}.pids"))
    if rank == 1:
        ctypes.PyDLL(None).sleep(1000)
    time.sleep(1000)

if __name__ == "__main__":
    spawn(work, (sys.argv[1],), start_method=sys.argv[2])
"""


def wait_until(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def processes_of(temporary):
    """All that were started with this temporary folder: ranks, their children, the warm server."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.fsencode(temporary) in (process / "environ").read_bytes() and is_alive(process.name):
                found.append(int(process.name))
    return found


def left_in(temporary):
    """All but the cache that torch makes for each user when its compiler is imported."""
    return [path.name for path in temporary.iterdir() if not path.name.startswith("torchinductor_")]


@pytest.fixture
def launched(tmp_path, request):
    """A script in the middle of a launch; its ranks' and their children's pids; its temporary folder."""
    temporary = Path(tempfile.mkdtemp(prefix="临时 "))  # not in tmp_path: too long for the server's socket
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with open(tmp_path / "stderr", "w") as stderr:
        parent = subprocess.Popen(
            [sys.executable, script, tmp_path, request.param],
            env=os.environ | {"TMPDIR": str(temporary)},
            stderr=stderr,
        )
    try:
        wait_until(lambda: len(list(tmp_path.glob("*.pids"))) == 2 or parent.poll() is not None, 60)
        assert parent.poll() is None, (tmp_path / "stderr").read_text()
        pids = [int(pid) for note in tmp_path.glob("*.pids") for pid in note.read_text().split()]
        assert len(pids) == 6 and all(map(is_alive, pids))
        yield parent, pids, temporary
    finally:
        parent.kill()
        parent.wait()
        for pid in processes_of(temporary):  # none, unless the test failed
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(temporary)


@pytest.mark.parametrize("launched", ["forkserver"], indirect=True)
def test_ctrl_c_ends_all_and_leaves_nothing(launched, tmp_path):
    parent, pids, temporary = launched
    parent.send_signal(signal.SIGINT)
    assert parent.wait(10) == -signal.SIGINT
    last = (tmp_path / "stderr").read_text().splitlines()[-1]
    assert last == "KeyboardInterrupt: all ranks were ended · 所有 rank 都已结束"
    assert not any(map(is_alive, pids))
    wait_until(lambda: not processes_of(temporary), 60)  # the server too, whose end takes a while when busy
    assert left_in(temporary) == []


@pytest.mark.parametrize("launched", ["forkserver", "spawn"], indirect=True)
def test_a_killed_parent_leaves_no_process(launched):
    parent, pids, temporary = launched
    parent.kill()
    wait_until(lambda: not any(map(is_alive, pids)), 5)
    wait_until(lambda: not processes_of(temporary), 60)  # the server too, whose end takes a while when busy
    assert left_in(temporary) == []


def start_subprocess():
    return subprocess.Popen(["sleep", "1000"]).pid


def start_session():
    return subprocess.Popen(["sleep", "1000"], start_new_session=True).pid


def fork():
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(1000)
    return pid


ENDS = {"returns": lambda: None, "raises": lambda: 1 / 0, "dies": lambda: os._exit(3)}


CHILDREN = [(end, start) for end in ENDS for start in (start_subprocess, start_session, fork)]
CHILDREN.remove(("dies", start_session))  # nobody knows any more whose child it was


@pytest.mark.parametrize(("end", "start"), CHILDREN)
def test_a_rank_leaves_no_child_behind(end, start, tmp_path):
    def work(rank):
        (tmp_path / str(rank)).write_text(f"{os.getpid()} {start()}")
        ENDS[end]()

    with pytest.raises(RankFailed) if end != "returns" else contextlib.nullcontext():
        spawn(work)
    pids = [int(pid) for rank in "01" for pid in (tmp_path / rank).read_text().split()]
    try:
        wait_until(lambda: not any(map(is_alive, pids)), 5)
    finally:
        for pid in filter(is_alive, pids):  # none, unless the test failed
            os.kill(pid, signal.SIGKILL)


def test_an_interrupt_while_ranks_start_leaves_none(monkeypatch):
    started = []
    end_all = launch.end_all

    def recorded(processes):
        started.extend(process.pid for process in processes)
        end_all(processes)

    monkeypatch.setattr("ddp_src._start.warm_up", lambda: signal.raise_signal(signal.SIGINT))
    monkeypatch.setattr(launch, "end_all", recorded)
    with pytest.raises(KeyboardInterrupt):
        spawn(print)
    assert len(started) == 2  # none was forgotten
    assert not any(map(is_alive, started))


def test_an_interrupt_in_the_middle_of_another_ones_work_forgets_no_rank(monkeypatch):
    started = []
    end_all = launch.end_all

    def end_all_interrupted(processes):
        signal.raise_signal(signal.SIGINT)
        started.extend(process.pid for process in processes)
        end_all(processes)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(launch, "end_all", end_all_interrupted)
    monkeypatch.setattr(launch.Output, "pump", lambda self, **_: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt) as caught:
        spawn(time.sleep)
    assert str(caught.value) == "all ranks were ended · 所有 rank 都已结束"
    assert len(started) == 2
    assert not any(map(is_alive, started))


def test_an_interrupt_at_the_very_end_is_heard(monkeypatch):
    end_all = launch.end_all
    monkeypatch.setattr(launch, "end_all", lambda ranks: (end_all(ranks), signal.raise_signal(signal.SIGINT)))
    with pytest.raises(KeyboardInterrupt):
        spawn(print)


def test_launches_use_up_nothing_of_the_caller(tmp_path):
    def used():
        gc.collect()
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    def fail(rank):
        raise ValueError

    spawn(print, show=False)  # starts the warm server
    multiprocessing.active_children()  # lets go of what has ended
    before = used()
    for start_method in ("forkserver", "forkserver", "spawn"):
        spawn(print, show=False, start_method=start_method)
    with pytest.raises(RankFailed):
        spawn(fail)
    assert used() == before
    assert multiprocessing.active_children() == []


# --- files ------------------------------------------------------------------------------------------------


def test_the_private_folder_is_private_and_gone_after_success(temporary):
    def look(rank, temporary):
        root = next(temporary.glob("ddp-*"))
        launch = next(root.glob("launch-*"))
        return oct(root.stat().st_mode), oct(launch.stat().st_mode), (launch / "payload.pkl").exists()

    assert spawn(look, (temporary,)) == [("0o40700", "0o40700", True)] * 2
    (root,) = temporary.iterdir()
    assert list(root.iterdir()) == []


def test_after_a_failure_the_logs_stay_and_nothing_else(temporary):
    def work(rank):
        print("a trace", flush=True)
        raise ValueError

    with pytest.raises(RankFailed):
        spawn(work, show=False)
    (launch,) = next(temporary.glob("ddp-*")).iterdir()
    assert sorted(path.name for path in launch.iterdir()) == ["rank0.log", "rank1.log"]
    assert (launch / "rank0.log").read_text().startswith("a trace\n")


def test_only_folders_of_dead_processes_are_swept(temporary):
    dead = subprocess.Popen(["true"])
    dead.wait()
    kept = [f"ddp-{os.getpid()}-abcdefgh", "ddp-1-abcdefgh", "ddp-1x-abcdefgh", f"ddp-{dead.pid}-x", "other"]
    kept.append(f"ddp-{2**70}-abcdefgh")
    for name in [*kept, f"ddp-{dead.pid}-abcdefgh"]:
        (temporary / name).mkdir()
        (temporary / name / "file").touch()
    _folder._sweep()
    assert sorted(path.name for path in temporary.iterdir()) == sorted(kept)


def test_a_forked_process_leaves_its_parents_folder_alone(temporary):
    root = _folder.root_folder()
    pid = os.fork()
    if pid == 0:
        _folder._remove(root, os.getppid())
        os._exit(0 if _folder.root_folder() != root else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert root.exists()


# --- doors ------------------------------------------------------------------------------------------------


def test_ranks_listen_on_loopback_alone(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "none0")  # whatever the caller has set for other programs

    def listening(rank):
        """The addresses, in the kernel's hexadecimal, on which this process listens."""
        descriptors = Path("/proc/self/fd").iterdir()
        inodes = {os.readlink(path)[8:-1] for path in descriptors if os.path.islink(path)}
        rows = [
            line.split()
            for table in ("tcp", "tcp6")
            for line in Path("/proc/net", table).read_text().splitlines()[1:]
        ]
        return [row[1].split(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes]

    doors = spawn(listening)
    assert all(doors)  # Gloo does listen
    assert {address for rank in doors for address in rank} == {"0100007F"}  # 127.0.0.1
