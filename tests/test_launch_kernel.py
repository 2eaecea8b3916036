"""Launches from a Jupyter kernel that is stopped, restarted or killed, and from a terminal that closes."""

import contextlib
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty

import nbformat
import pytest
from jupyter_client import KernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellTimeoutError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

START = 60  # seconds that a kernel, or its first launch, may take on a busy machine
CONTRACT = 5  # seconds after the end of a launch in which all that its ranks have started must be gone

# Each rank has a subprocess and a loader worker. Then rank 1 holds the GIL, so that no thread of it can do
# anything, and rank 0 waits for it in a collective; or both sleep.
WORK = """
import ctypes, multiprocessing, os, subprocess, time
from concurrent.futures import ThreadPoolExecutor
import torch, torch.distributed as dist
from torch.utils.data import DataLoader
from ddp_src import spawn

def work(rank, holds_gil=True):
    child = subprocess.Popen(["sleep", "1000"])
    loader = iter(DataLoader(range(9), num_workers=1))
    worker = multiprocessing.active_children()[0]
    print("at work:", os.getpid(), child.pid, worker.pid, flush=True)
    if holds_gil and rank == 1:
        ctypes.PyDLL(None).sleep(1000)
    if holds_gil:
        dist.barrier()
    time.sleep(1000)

def hold_semaphore(rank):
    lock = multiprocessing.get_context("spawn").Lock()
    print("at work: holds", lock._semlock.name, flush=True)
    time.sleep(1000)

def total(rank, offset=0):
    value = torch.tensor(offset + 1.0 + rank)
    dist.all_reduce(value)
    return value.item()
"""


# --- what lives, and what is left -------------------------------------------------------------------------


def assert_gone(left: Callable[[], object], seconds: float = CONTRACT) -> None:
    """Nothing is `left`, now or within `seconds`."""
    until = time.monotonic() + seconds
    while left() and time.monotonic() < until:
        time.sleep(0.01)
    assert not left()


def processes_of(temporary: Path) -> dict[int, str]:
    """The command of each process that was started with this temporary folder, whatever its parent is."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            environment = (process / "environ").read_bytes()  # a zombie has none
            if f"TMPDIR={temporary}\0".encode() in environment:
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ")
                found[int(process.name)] = command.decode(errors="replace")
    return found


def left_in(temporary: Path) -> set[str]:
    """All but IPython's profile, and the cache that torch makes for each user."""
    return {path.name for path in temporary.iterdir() if not re.match("ipython$|torchinductor_", path.name)}


def descriptors_of(pid: int) -> set[str]:
    """What the open descriptors of a process stand for, such as "pipe:[1234]"."""
    found = set()
    with contextlib.suppress(OSError):
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.add(os.readlink(path))
    return found


def ports_of(pids: set[int]) -> set[str]:
    """The TCP addresses, in the kernel's hexadecimal, on which one of `pids` listens."""
    sockets = set().union(*map(descriptors_of, pids))
    return {address for address, inode in open_ports().items() if f"socket:[{inode}]" in sockets}


def open_ports() -> dict[str, str]:
    """Each TCP address on which somebody listens, with the inode of the socket."""
    tables = [Path("/proc/net", name).read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table]
    return {row[1]: row[9] for row in rows if row[3] == "0A"}


def semaphores_of(cell: "Cell") -> list[Path]:
    """The files of the semaphores that the ranks have printed the names of."""
    return [Path(f"/dev/shm/sem.{name}") for name in re.findall(r"holds /(\S+)", cell.printed)]


def ranks_and_children(printed: str) -> set[int]:
    """The pids that two ranks have printed: each has a subprocess and a loader worker."""
    pids = {int(pid) for pids in re.findall(r"at work: (\d+) (\d+) (\d+)", printed) for pid in pids}
    assert len(pids) == 6
    return pids


@contextlib.contextmanager
def own_folder() -> Iterator[Path]:
    """A temporary folder by which processes are known; its path is short, for the warm server's socket."""
    folder = Path(tempfile.mkdtemp(prefix="k-"))
    try:
        yield folder
    finally:
        for pid in processes_of(folder):  # none, unless the test failed
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def temporary() -> Iterator[Path]:
    with own_folder() as folder:
        yield folder


# --- a kernel ---------------------------------------------------------------------------------------------


class Cell:
    """A cell that a kernel executes: what it has `printed` so far, then its `value` or its `error`."""

    def __init__(self, client, source: str) -> None:
        self.printed, self.value, self.error, self.done = "", None, None, False
        self._client = client
        self._id = client.execute(source)

    def read_until(self, condition: Callable[[], object], seconds: float = START) -> "Cell":
        """Take what the kernel sends until `condition` holds."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert not self.done and time.monotonic() < deadline, f"{self.printed}\n{self.error}"
            with contextlib.suppress(Empty):
                self._take(self._client.get_iopub_msg(timeout=0.1))
        return self

    def end(self, seconds: float = START) -> "Cell":
        return self.read_until(lambda: self.done, seconds)

    def _take(self, message: dict) -> None:
        kind, content = message["msg_type"], message["content"]
        if message["parent_header"].get("msg_id") != self._id:
            return
        if kind == "stream":
            self.printed += content["text"]
        elif kind == "execute_result":
            self.value = content["data"]["text/plain"]
        elif kind == "error":
            self.error = content
        self.done = kind == "status" and content["execution_state"] == "idle"


class Kernel:
    """A Jupyter kernel with a temporary folder of its own."""

    def __init__(self, temporary: Path) -> None:
        self.temporary = temporary
        self.client = None
        self.manager = KernelManager(kernel_name="python3")
        settings = {"TMPDIR": str(temporary), "IPYTHONDIR": str(temporary / "ipython")}
        self.manager.start_kernel(env=os.environ | settings)

    def get_ready(self) -> "Kernel":
        """Connect to the kernel that runs now, and define the functions in it."""
        self._disconnect()
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=START)
        assert self.run(WORK).end().error is None
        return self

    def run(self, source: str) -> Cell:
        return Cell(self.client, source)

    def restart(self) -> None:
        """Whether it still lives or not, as the restart button does."""
        self.manager.restart_kernel(now=True)
        self.get_ready()

    def lives(self, pids: set[int]) -> set[int]:
        """Those of `pids` that live."""
        return pids & self.processes()

    def launch(self, call: str, *, says: str = "at work") -> Cell:
        """A cell in the middle of a launch: both ranks have printed what they say."""
        cell = self.run(call)
        return cell.read_until(lambda: len(re.findall(f"{says}.*\n", cell.printed)) == 2)

    def launches_well(self) -> bool:
        return self.run("spawn(total)").end().value == "[3.0, 3.0]"

    def interrupt(self) -> None:
        self.manager.interrupt_kernel()

    @property
    def pid(self) -> int:
        return self.manager.provisioner.pid

    def processes(self) -> set[int]:
        return set(processes_of(self.temporary))

    def is_idle(self) -> bool:
        with contextlib.suppress(AssertionError):
            return self.manager.is_alive() and self.run("1").end(CONTRACT).value == "1"
        return False

    def close(self) -> None:
        self._disconnect()
        self.manager.shutdown_kernel(now=True)

    def _disconnect(self) -> None:
        if self.client:
            self.client.stop_channels()


@pytest.fixture(scope="module")
def start_kernel() -> Iterator[Callable[[], Kernel]]:
    """Kernels that are shut down after the last test of this file, and the one that is in use."""
    with contextlib.ExitStack() as stack:

        def start() -> Kernel:
            kernel = Kernel(stack.enter_context(own_folder()))
            stack.callback(kernel.close)
            return kernel.get_ready()

        yield start


@pytest.fixture(scope="module")
def shared(start_kernel) -> list[Kernel]:
    return []


@pytest.fixture
def kernel(shared, start_kernel) -> Kernel:
    """An idle kernel that has launched once: the last test's, unless that one left it busy or dead."""
    if not shared or not shared[-1].is_idle():
        shared.append(start_kernel())
    assert shared[-1].launches_well()
    return shared[-1]


# --- the stop button --------------------------------------------------------------------------------------


def was_interrupted(cell: Cell) -> bool:
    """A second interrupt may cut off what IPython shows of the first; it then prints the name alone."""
    return cell.error["ename"] == "KeyboardInterrupt" if cell.error else "\nKeyboardInterrupt" in cell.printed


@pytest.mark.parametrize("holds_gil", [False, True])
def test_the_stop_button_ends_all_and_the_next_cell_launches(kernel, holds_gil):
    before = kernel.processes()
    cell = kernel.launch(f"spawn(work, ({holds_gil},))")
    pids = ranks_and_children(cell.printed)
    ports = ports_of(pids)
    assert kernel.processes() - before == pids and ports
    kernel.interrupt()
    assert was_interrupted(cell.end(CONTRACT))
    assert_gone(lambda: kernel.lives(pids))
    assert kernel.processes() == before
    assert_gone(lambda: ports & open_ports().keys())
    assert kernel.launches_well()


def test_a_stopped_cell_shows_one_line(kernel):
    cell = kernel.launch("spawn(work)")
    kernel.interrupt()
    assert cell.end().error["traceback"] == ["KeyboardInterrupt: all ranks were ended · 所有 rank 都已结束"]


def test_a_stopped_launch_leaves_its_logs_and_nothing_else(kernel):
    def held() -> tuple[set[str], set[str]]:
        files = {str(path.relative_to(kernel.temporary)) for path in kernel.temporary.glob("ddp-*/**/*")}
        return files, {name for name in descriptors_of(kernel.pid) if name.startswith("pipe:")}

    files, pipes = held()
    cell = kernel.launch("spawn(work)")
    kernel.interrupt()
    cell.end()
    files_after, pipes_after = held()
    assert sorted(re.sub(r"\w{8}$|.*/", "", name) for name in files_after - files) == [
        "launch-",
        "rank0.log",
        "rank1.log",
    ]
    assert pipes_after == pipes


def test_a_stopped_launch_leaves_no_semaphore(kernel):
    cell = kernel.launch("spawn(hold_semaphore)")
    semaphores = semaphores_of(cell)
    assert [path.exists() for path in semaphores] == [True, True]
    kernel.interrupt()
    cell.end()
    assert_gone(lambda: [path for path in semaphores if path.exists()])


def test_two_interrupts_at_once_are_as_good_as_one(kernel):
    cell = kernel.launch("spawn(work)")
    pids = ranks_and_children(cell.printed)
    kernel.interrupt()
    kernel.interrupt()
    assert was_interrupted(cell.end(CONTRACT))
    assert_gone(lambda: kernel.lives(pids))
    assert kernel.launches_well()


SLOW_TO_LOAD = """
def load():
    print("loading", flush=True)
    time.sleep(1000)

class SlowToLoad:
    def __reduce__(self):
        return load, ()
"""


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_an_interrupt_before_the_group_is_joined_leaves_no_rank(kernel, start_method):
    before = kernel.processes()
    kernel.run(SLOW_TO_LOAD).end()
    cell = kernel.launch(f'spawn(total, (SlowToLoad(),), start_method="{start_method}")', says="loading")
    kernel.interrupt()
    assert was_interrupted(cell.end(CONTRACT))
    assert_gone(lambda: kernel.processes() - before)
    assert kernel.launches_well()


@pytest.mark.parametrize(
    ("start_method", "first", "own"),
    [("forkserver", "multiprocessing.forkserver", 5), ("spawn", "multiprocessing.spawn", 4)],
)
def test_an_interrupt_while_the_first_process_starts_leaves_no_rank(kernel, start_method, first, own):
    kernel.restart()  # so that the warm server has yet to start
    cell = kernel.run(f'spawn(work, start_method="{start_method}")')
    cell.read_until(lambda: any(first in command for command in processes_of(kernel.temporary).values()))
    kernel.interrupt()
    assert was_interrupted(cell.end())
    assert_gone(lambda: len(kernel.processes()) > own)
    assert len(kernel.processes()) == own  # the kernel, its tracker, the server if warm, two that clean up
    assert kernel.launches_well()


# --- the end of a kernel ----------------------------------------------------------------------------------

ENDS = {
    "restart": lambda kernel: kernel.manager.restart_kernel(now=False),
    "restart now": lambda kernel: kernel.manager.restart_kernel(now=True),
    "kill -9": lambda kernel: os.kill(kernel.pid, signal.SIGKILL),
}


@pytest.mark.parametrize("end", ENDS)
def test_the_end_of_a_kernel_ends_all_and_leaves_nothing(kernel, end):
    pids = ranks_and_children(kernel.launch("spawn(work)").printed)
    others = kernel.processes() - pids
    ports = ports_of(pids)
    assert kernel.lives(pids) == pids and ports
    ENDS[end](kernel)
    assert_gone(lambda: kernel.lives(pids))
    assert_gone(lambda: left_in(kernel.temporary))
    assert_gone(lambda: ports & open_ports().keys())
    assert_gone(lambda: kernel.lives(others), START)  # the warm server has much to put away
    kernel.restart()
    assert kernel.launches_well()


@pytest.mark.parametrize("now", [False, True])
def test_a_kernel_that_is_shut_down_leaves_nothing_not_even_a_semaphore(kernel, now):
    semaphores = semaphores_of(kernel.launch("spawn(hold_semaphore)"))
    assert [path.exists() for path in semaphores] == [True, True]
    kernel.manager.shutdown_kernel(now=now)
    assert_gone(lambda: [path for path in semaphores if path.exists()])
    assert_gone(lambda: left_in(kernel.temporary))
    assert_gone(kernel.processes, START)


# --- what a cell shows ------------------------------------------------------------------------------------

SPEAK = """
def speak(rank, go):
    if rank == 0:
        print("in two ", end="", flush=True)
    dist.barrier()
    if rank == 1:
        print("whole", flush=True)
    while not os.path.exists(go):
        time.sleep(0.01)
    print("pieces" if rank == 0 else "the last")
"""


def test_whole_lines_appear_below_a_cell_that_still_runs(kernel, tmp_path):
    kernel.run(SPEAK).end()
    cell = kernel.run(f"spawn(speak, ({str(tmp_path / 'go')!r},))")
    cell.read_until(lambda: "whole" in cell.printed)
    assert cell.printed == "[rank 1] whole\n"
    assert not cell.done
    (tmp_path / "go").touch()
    cell.end()
    assert sorted(cell.printed.splitlines()) == [
        "[rank 0] in two pieces",
        "[rank 1] the last",
        "[rank 1] whole",
    ]


MEET = """
def meet(rank, offset, folder):
    open(f"{folder}/{offset}-{rank}", "w").close()
    while len(os.listdir(folder)) < 4:  # until the ranks of both launches are there
        time.sleep(0.01)
    print(f"{offset} met")
    return total(rank, offset)
"""


def test_two_threads_of_a_kernel_launch_at_once(kernel, tmp_path):
    kernel.run(MEET).end()
    cell = kernel.run(f"""
def launch(offset):
    return spawn(meet, (offset, {str(tmp_path)!r}), time_limit={START})

with ThreadPoolExecutor(2) as pool:
    results = list(pool.map(launch, (10, 20)))
results
""").end()
    assert cell.error is None
    assert cell.value == "[[23.0, 23.0], [43.0, 43.0]]"
    assert sorted(cell.printed.splitlines()) == [
        "[rank 0] 10 met",
        "[rank 0] 20 met",
        "[rank 1] 10 met",
        "[rank 1] 20 met",
    ]


# --- a cell that takes too long ---------------------------------------------------------------------------

ENDLESS = """
def endless(rank, folder):
    open(f"{folder}/{os.getpid()}", "w").close()
    work(rank)

spawn(endless, (%r,))
"""


def notebook_of(*sources: str) -> nbformat.NotebookNode:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return notebook


@pytest.fixture
def at_work(tmp_path):
    """A folder in which each rank of ENDLESS makes a file with its pid as its name."""
    folder = tmp_path / "at work"
    folder.mkdir()
    return folder


def test_a_cell_that_nbclient_gives_up_on_leaves_no_rank(temporary, at_work):
    def seconds(cell: nbformat.NotebookNode) -> int:
        return 2 if "endless" in cell.source else START

    notebook = notebook_of(WORK, "spawn(total)", ENDLESS % str(at_work))
    client = NotebookClient(notebook, timeout_func=seconds, kernel_name="python3")
    with pytest.raises(CellTimeoutError):
        client.execute(env=os.environ | {"TMPDIR": str(temporary)})
    assert_gone(lambda: {int(file.name) for file in at_work.iterdir()} & processes_of(temporary).keys())
    assert_gone(lambda: left_in(temporary))
    assert_gone(lambda: processes_of(temporary), START)
    assert len(list(at_work.iterdir())) == 2


def test_a_notebook_that_nbmake_gives_up_on_fails_and_leaves_no_rank(temporary, at_work, tmp_path):
    nbformat.write(notebook_of(ENDLESS % str(at_work)), tmp_path / "endless.ipynb")
    startup = tmp_path / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "first_launch.py").write_text(f"{WORK}\nspawn(total)")  # before the time of a cell counts
    command = [sys.executable, "-m", "pytest", "--nbmake", "--nbmake-timeout=5", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "endless.ipynb"],
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(temporary), "IPYTHONDIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert_gone(lambda: {int(file.name) for file in at_work.iterdir()} & processes_of(temporary).keys())
    assert_gone(lambda: left_in(temporary))
    assert_gone(lambda: processes_of(temporary), START)
    assert done.returncode == 1
    assert "A cell timed out while it was being executed, after 5 seconds." in done.stdout, done.stdout
    assert len(list(at_work.iterdir())) == 2, done.stdout


# --- a terminal -------------------------------------------------------------------------------------------

SCRIPT = f"""
import fcntl, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # this terminal is the one of this session
{WORK}
spawn(work)
"""


@pytest.mark.parametrize("end", ["the terminal closes", "SIGHUP", "SIGTERM"])
def test_the_end_of_a_script_in_a_terminal_ends_all_and_leaves_nothing(temporary, tmp_path, end):
    (tmp_path / "script.py").write_text(SCRIPT)
    ours, theirs = pty.openpty()
    terminal = os.fdopen(ours, "rb", buffering=0)
    parent = subprocess.Popen(
        [sys.executable, tmp_path / "script.py"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=os.environ | {"TMPDIR": str(temporary)},
        start_new_session=True,
    )
    os.close(theirs)
    with terminal:
        shown = b""
        while len(re.findall(rb"at work: .*\n", shown)) < 2:
            assert select.select([terminal], [], [], START)[0], shown
            shown += terminal.read(4096)
        pids = ranks_and_children(shown.decode())
        assert pids < processes_of(temporary).keys()
        if end != "the terminal closes":
            parent.send_signal(getattr(signal, end))
            parent.wait(CONTRACT)
    assert parent.wait(CONTRACT) == (-signal.SIGTERM if end == "SIGTERM" else -signal.SIGHUP)
    assert_gone(lambda: pids & processes_of(temporary).keys())
    assert_gone(lambda: left_in(temporary))
    assert_gone(lambda: processes_of(temporary), START)
