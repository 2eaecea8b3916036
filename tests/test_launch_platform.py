"""macOS and Windows, simulated: the launcher takes the branches that are meant for them, and they work.

What other_system/sitecustomize.py stands in for is what the modules of `ddp_src` ask their system. Python,
torch and the kernel below are still those of Linux.
"""

import json
import ntpath
import os
import signal
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path

import pytest

from ddp_src import _process, _reports, spawn
from ddp_src._reports import Frame, users_frames

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the stand-ins are made of what Linux has"),
    pytest.mark.timeout(300),  # ranks that start cold one launch after the other, on a busy machine
]

HERE = Path(__file__).parent
SYSTEMS = ["darwin", "win32"]
SOON = 120  # seconds until a busy machine has done it

LAUNCHES = """
import json, multiprocessing, os, sys, threading, time
from multiprocessing import forkserver
import torch, torch.distributed as dist
from ddp_src import LaunchError, spawn, warm_up

def work(rank):
    print(f"hello from {rank}", flush=True)
    total = torch.tensor(rank + 1.0)
    dist.all_reduce(total)
    return {
        "total": total.item(),
        "interface": os.environ["OTHER_LOOPBACK"],
        "libuv": os.environ.get("USE_LIBUV"),
        "store": type(dist.distributed_c10d._get_default_store().underlying_store).__name__,
        "waits for the parent": any("_wait_for_end_of" in thread.name for thread in threading.enumerate()),
        "own group": os.getpgrp() == os.getpid(),
    }

def fails(rank):
    if rank == 1:
        raise ValueError("the loss is nan")
    dist.barrier()

def hangs(rank):
    if rank == 0:
        dist.barrier()
    time.sleep(1000)

def error_of(fn, **options):
    try:
        spawn(fn, show=False, **options)
    except LaunchError as error:
        return type(error).__name__, str(error).splitlines()

warm_up()
warm = forkserver._forkserver._forkserver_pid is not None
told = [
    {"warm": warm, "results": spawn(work)},
    error_of(fails),
    error_of(hangs, timeout=0.5),
    error_of(print, start_method="forkserver" if sys.argv[1] == "win32" else "fork"),
]
print(json.dumps(told))
"""


def simulated(system: str, folder: Path, temporary: Path, program: str, *words: str) -> subprocess.Popen:
    """Start a program for which, and for whose ranks, `ddp_src` is on another system."""
    (folder / "script.py").write_text(program)
    environment = os.environ | {
        "OTHER_SYSTEM": system,
        "PYTHONPATH": os.pathsep.join([str(HERE / "other_system"), str(HERE.parent)]),
        "TMPDIR": str(temporary),
    }
    for name in ("GLOO_SOCKET_IFNAME", "USE_LIBUV"):
        environment.pop(name, None)
    return subprocess.Popen(
        [sys.executable, "script.py", *words],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )


@pytest.fixture(scope="module", params=SYSTEMS)
def launched(request, tmp_path_factory):
    """The system, what the launches of LAUNCHES came to, what was shown, and what was left behind."""
    folder = tmp_path_factory.mktemp(request.param)
    with tempfile.TemporaryDirectory(prefix="临时 ") as temporary:
        process = simulated(request.param, folder, Path(temporary), LAUNCHES, request.param)
        request.addfinalizer(process.kill)
        out, err = process.communicate(timeout=2 * SOON)
        assert (process.returncode, err) == (0, "")
        *shown, told = out.splitlines()
        yield request.param, json.loads(told), shown, os.listdir(temporary)


def test_the_results_are_right_and_the_prints_are_shown(launched):
    _, told, shown, _ = launched
    assert [rank["total"] for rank in told[0]["results"]] == [3.0, 3.0]
    assert shown[0] == "2 ranks · gloo · CPU"
    assert sorted(shown[1:]) == ["[rank 0] hello from 0", "[rank 1] hello from 1"]


def test_nothing_is_forked_from_a_process_with_torch(launched):
    _, told, _, _ = launched
    assert told[0]["warm"] is False


def test_ranks_meet_through_a_file_and_talk_over_the_systems_loopback(launched):
    system, told, _, _ = launched
    for rank in told[0]["results"]:
        assert (rank["store"], rank["libuv"]) == ("FileStore", None)  # libuv is a matter of TCP stores alone
        assert rank["interface"] == {"darwin": "lo0", "win32": ""}[system]


def test_a_thread_waits_for_the_end_of_the_parent(launched):
    system, told, _, _ = launched
    for rank in told[0]["results"]:
        assert rank["waits for the parent"]
        assert rank["own group"] == (system == "darwin")  # Windows has no groups


def test_the_first_cause_is_told(launched):
    _, told, _, _ = launched
    name, lines = told[1]
    assert (name, lines[:-1]) == (
        "RankFailed",
        [
            "rank 1 failed first · rank 1 最先出错",
            "ValueError: the loss is nan",
            "  File script.py, line 22, in fails",
            '    raise ValueError("the loss is nan")',
            "rank 0 was ended with it · rank 0 随之结束",
        ],
    )


def test_a_hang_is_told_with_stacks_where_the_system_has_signals(launched):
    system, told, _, _ = launched
    asleep = ["rank 1: File script.py, line 28, in hangs", "    time.sleep(1000)"]
    assert told[2] == [
        "RanksStuck",
        [
            "a rank waited more than 0.5 s in a collective that the others did not join",
            "有 rank 在一次集合通信里等了超过 0.5 秒，而别的 rank 没有来",
            "rank 0: in barrier, File script.py, line 27, in hangs",
            "    dist.barrier()",
            "    last collective · 最后的集合通信: #1 barrier",
            *(asleep if system == "darwin" else ["rank 1: running · 正在运行"]),
        ],
    ]


def test_a_way_to_start_that_the_system_has_not_is_refused(launched):
    system, told, _, _ = launched
    assert told[3][0] == "LaunchRefused"
    assert told[3][1][0].endswith(
        {
            "darwin": '\'fork\': choose one of "auto", "spawn", "forkserver".',
            "win32": '\'forkserver\': choose one of "auto", "spawn".',
        }[system]
    )


def test_nothing_stays_in_the_temporary_folder(launched):
    assert [name for name in launched[3] if not name.startswith("torchinductor_")] == []


ASLEEP = """
import os, sys, time
from pathlib import Path
from ddp_src import spawn

def work(rank):
    Path(f"{rank}.part").write_text(str(os.getpid()))
    Path(f"{rank}.part").rename(f"{rank}.pid")
    time.sleep(1000)

spawn(work)
"""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def happens(condition, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_the_parents_end_leaves_no_rank(system, how, tmp_path, request):
    with tempfile.TemporaryDirectory() as temporary:
        parent = simulated(system, tmp_path, Path(temporary), ASLEEP)
        request.addfinalizer(parent.kill)
        notes = [tmp_path / f"{rank}.pid" for rank in (0, 1)]
        happens(lambda: all(note.exists() for note in notes) or parent.poll() is not None, SOON)
        assert parent.poll() is None, parent.stderr.read()
        ranks = [int(note.read_text()) for note in notes]
        try:
            parent.send_signal(how)
            parent.communicate(timeout=SOON)
            assert happens(lambda: not any(map(is_alive, ranks)), 5)
        finally:
            for rank in filter(is_alive, ranks):  # none, unless the test failed
                os.kill(rank, signal.SIGKILL)


# --- what only the stand-ins show -----------------------------------------------------------------------


def in_process(system: str, program: str, folder: Path) -> str:
    """Run a program that launches nothing, with `ddp_src` on another system; what its rank's log holds."""
    process = simulated(system, folder, folder, program)
    _, err = process.communicate(timeout=SOON)
    assert (process.returncode, err) == (0, "")
    return (folder / "log").read_bytes().decode()


PRINTS = """
import io, os, sys
from pathlib import Path

class Console(io.RawIOBase):
    def writable(self):
        return True

    def write(self, data):
        if not os.isatty(1):
            raise OSError(6, "The handle is invalid")

sys.stdout = io.TextIOWrapper(io.BufferedWriter(Console()))
from ddp_src._process import send_output_to

send_output_to(Path("log"))
print("hello")
"""


def test_a_rank_that_windows_starts_in_a_console_prints_to_its_log(tmp_path):
    """There Python's stdout writes to the console itself, and fails once descriptor 1 is a file."""
    assert in_process("win32", PRINTS, tmp_path) == "hello\n"


def test_a_parent_that_is_gone_before_a_rank_waits_for_its_end_ends_the_rank(monkeypatch):
    class Gone:
        """A pipe whose other end is closed, as Windows has it."""

        def poll(self, seconds):
            raise BrokenPipeError(109, "The pipe has been ended")

    ended = []
    monkeypatch.delattr(os, "killpg")
    monkeypatch.setattr(os, "_exit", ended.append)
    _process._wait_for_end_of(Gone())
    assert ended == [1]


def test_a_log_that_something_else_has_open_stays_and_harms_nothing(monkeypatch):
    unlink = Path.unlink

    def unlink_on_windows(path, missing_ok=False):
        if path.suffix in (".log", ".txt"):
            raise PermissionError(13, "another process is using the file", str(path))
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink_on_windows)
    assert spawn(lambda rank: rank, show=False) == [0, 1]


def test_python_and_packages_are_told_from_the_learners_code_whatever_the_case(monkeypatch):
    other_os = types.SimpleNamespace(sep=ntpath.sep, path=ntpath)
    paths = dict.fromkeys(("stdlib", "platstdlib"), "C:\\Python311\\Lib")
    paths |= dict.fromkeys(("purelib", "platlib"), "C:\\Users\\Li\\.venv\\Lib\\site-packages")
    monkeypatch.setattr(_reports, "os", other_os)
    monkeypatch.setattr(_reports.sysconfig, "get_paths", lambda: paths)
    mine = [Frame("C:\\Users\\Li\\script.py", 1, "f"), Frame("c:\\users\\li\\.venv\\Library.py", 1, "f")]
    others = [
        Frame("c:\\users\\li\\.venv\\lib\\site-packages\\torch\\nn.py", 1, "f"),
        Frame("c:\\python311\\lib\\threading.py", 1, "f"),
        Frame("<frozen runpy>", 1, "f"),
    ]
    assert users_frames([*others, *mine]) == mine
