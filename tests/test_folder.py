"""Nothing of a launch stays in the temporary folder, however the process that launched it ends."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

PARENT = """
import sys
from ddp_src import spawn, warm_up

def work(rank):
    print("at work", flush=True)
    if sys.argv[1] != "return":
        import time
        time.sleep(1000)

warm_up()
spawn(work, nprocs=2)
print("returned", flush=True)
"""


@pytest.fixture
def short_folder():
    """A socket's path may have 107 bytes only, and pytest's own folders are long."""
    with tempfile.TemporaryDirectory(prefix="t-") as folder:
        yield Path(folder)


def left_in(folder: Path) -> list[str]:
    """All but the cache that torch makes for each user when its compiler is imported."""
    return [path.name for path in folder.iterdir() if not path.name.startswith("torchinductor_")]


def gets_empty(folder: Path) -> bool:
    deadline = time.monotonic() + 60
    while left_in(folder) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not left_in(folder)


@pytest.mark.skipif(os.name != "posix", reason="a shell waits for the end, which Windows has not")
@pytest.mark.parametrize("end", ["return", "SIGKILL", "SIGTERM", "SIGINT", "SIGHUP"])
def test_the_temporary_folder_is_empty_after_the_end(request, tmp_path, short_folder, end):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    temporary = short_folder / "临时 f"
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, script, end],
        env=os.environ | {"TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    request.addfinalizer(process.kill)
    lines = iter(process.stdout.readline, "")
    assert any("at work" in line for line in lines)
    (root,) = left_in(temporary)
    assert root.startswith(f"ddp-{process.pid}-")
    assert (temporary / root).stat().st_mode & 0o777 == 0o700
    if end != "return":
        process.send_signal(getattr(signal, end))
    process.wait(timeout=30)
    process.stdout.close()
    assert gets_empty(temporary), left_in(temporary)
