"""The stress run in small, and that it sees what is not right."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).resolve().parent / "stress/soak.py"
FAULTS = [
    "exception",
    "two ranks fail",
    "os._exit(3)",
    "os._exit(0)",
    "SIGKILL",
    "SIGSEGV",
    "mismatched sizes",
    "KeyboardInterrupt",
    "sys.exit",
    "unpicklable result",
    "unpicklable exception",
    "skipped collective",
    "early return",
]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("t")  # short: a socket's path has room for 107 characters


def run(temporary: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    root = str(SOAK.parent.parent.parent)
    env = os.environ | {"TMPDIR": str(temporary), "PYTHONPATH": root}
    return subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True, timeout=110)


def rows(table: str) -> dict[str, list[str]]:
    """Each row of the table, but for the columns of time and memory."""
    found = re.findall(
        r"(?m)^(warm|cold|fault) +(\d+) +(\d+) +[\d.]+ +[\d.]+ +[+-][\d.]+((?: +\d+)+)$", table
    )
    return {name: [launches, right, *left.split()] for name, launches, right, left in found}


def test_all_is_right_and_nothing_is_left(temporary: Path):
    result = run(temporary, SOAK, "--warm", "20", "--cold", "1", "--faults", "13", "--seed", "3")
    assert result.returncode == 0, result.stdout + result.stderr
    assert rows(result.stdout) == {
        "warm": ["20", "20", "0", "0", "0", "0", "0", "0"],
        "cold": ["1", "1", "0", "0", "0", "0", "0", "0"],
        "fault": ["13", "13", "0", "0", "0", "0", "0", "0"],
    }
    assert re.findall(r"(?m)^(.+?) +1 of 1 right$", result.stdout) == FAULTS
    assert result.stdout.startswith("seed 3\n") and result.stdout.endswith("\nall is right\n")
    assert list(temporary.iterdir()) == []


LIES = """
import atexit, os, socket, subprocess, sys, tempfile, threading
from pathlib import Path

sys.path.insert(0, sys.argv[1])
import launches, soak

true, lies = launches.spawn, []


def lie(fn, args, nprocs, **options):
    if fn is launches.job and not lies:  # the first launch
        lies.append(None)
        return true(fn, args, nprocs, **options)
    lies.append(bytearray(b"x" * 2**23))
    lies.append(subprocess.Popen(["sleep", "1000"]))
    atexit.register(lies[-1].kill)
    lies.append(socket.create_server(("127.0.0.1", 0)))
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    Path(tempfile.mkstemp()[1])
    name = f"/dev/shm/sem.soak-{len(lies)}-{os.getpid()}"
    Path(name).touch()
    atexit.register(os.unlink, name)
    try:
        results = true(fn, args, nprocs, **options)
    except launches.faults.RankFailed as error:
        error.rank += 1
        raise
    return [*results[:-1], None]


launches.spawn = lie
sys.exit(soak.main(sys.argv[2:]))
"""


def test_what_is_not_right_is_counted_and_told_with_the_way_to_repeat_it(temporary: Path):
    words = ["--warm", "2", "--cold", "0", "--faults", "1", "--seed", "3"]
    result = run(temporary, "-c", LIES, SOAK.parent, *words)
    assert result.returncode == 1, result.stderr
    assert "warm launch 1 is not right: " in result.stdout
    assert rows(result.stdout)["fault"][:2] == ["1", "0"]
    assert "repeat it with: ./launch.sh test --stress --seed 3 --only 0\n" in result.stdout
    # per launch: sleep; mkstemp's file; its descriptor and the socket; the port; the semaphore; the thread
    assert rows(result.stdout)["warm"] == ["2", "0", "2", "2", "4", "2", "2", "2"]
    assert re.search(r"left after warm, processes: .*sleep 1000", result.stdout)
    assert float(re.search(r"(?m)^warm.* \+([\d.]+) ", result.stdout)[1]) > 5
    assert result.stdout.endswith("\nNOT ALL IS RIGHT\n")


def test_what_is_no_number_is_refused():
    result = subprocess.run([sys.executable, SOAK, "--warm", "ten"], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (2, "")
    assert "'ten' is not a whole number · 'ten' 不是非负整数" in result.stderr
