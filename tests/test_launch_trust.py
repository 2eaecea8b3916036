"""What a launch trusts in a folder that others can write to: what it wrote itself, and nothing else."""

import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ddp_src import _folder, spawn

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="owners and links, as Linux has them")


@pytest.fixture
def left_name():
    """The name of a folder that a process left which has been killed."""
    dead = subprocess.Popen(["true"])
    dead.wait()
    return f"ddp-{dead.pid}-abcdefgh"


@pytest.fixture
def precious(tmp_path):
    """A folder elsewhere that nobody may touch, with a file in it."""
    folder = tmp_path / "precious"
    folder.mkdir()
    (folder / "file").touch()
    yield folder
    assert [path.name for path in folder.iterdir()] == ["file"]


def as_another_user(monkeypatch):
    """From here on all that this process owns is someone else's."""
    own = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: own + 1)


def test_another_users_folder_is_not_swept(temporary, left_name, monkeypatch):
    (temporary / left_name).mkdir()
    as_another_user(monkeypatch)
    _folder._sweep()
    assert [path.name for path in temporary.iterdir()] == [left_name]


@pytest.mark.parametrize("mine", [True, False])
def test_a_link_in_place_of_a_left_folder_is_not_followed(temporary, left_name, precious, mine, monkeypatch):
    (temporary / left_name).symlink_to(precious)
    if not mine:
        as_another_user(monkeypatch)
    _folder._sweep()
    assert (temporary / left_name).is_symlink()


def test_links_inside_a_left_folder_are_removed_and_not_followed(temporary, left_name, precious):
    left = temporary / left_name
    (left / "launch-abcdefgh").mkdir(parents=True)
    (left / "launch-abcdefgh" / "payload.pkl").symlink_to(precious / "file")
    (left / "launch-abcdefgh" / "more").symlink_to(precious)
    (left / "link").symlink_to(precious)
    _folder._sweep()
    assert list(temporary.iterdir()) == []


ENDS_BADLY = """
import os, shutil, signal, sys
from ddp_src import _folder
root = _folder.root_folder()
shutil.rmtree(root)
root.symlink_to(sys.argv[1])
print(root, flush=True)
if sys.argv[2] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("end", ["killed", "returns"])
def test_a_link_in_place_of_the_own_folder_is_not_followed_at_the_end(temporary, precious, end):
    environment = os.environ | {"TMPDIR": str(temporary)}
    program = [sys.executable, "-c", ENDS_BADLY, precious, end]
    done = subprocess.run(program, env=environment, capture_output=True, text=True)
    link = Path(done.stdout.strip())
    assert link.parent == temporary, done.stderr
    deadline = time.monotonic() + 60
    while link.is_symlink():  # until the removal has come to it
        assert time.monotonic() < deadline, "it was not removed"
        time.sleep(0.01)


class Trap:
    """A pickle that leaves a trace where it is loaded."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


def test_a_pickle_that_lies_about_is_never_loaded(temporary, tmp_path, monkeypatch):
    trap = pickle.dumps(Trap(tmp_path / "sprung"))
    logs = tmp_path / "logs"
    folders = [temporary, temporary / "launch-abcdefgh", temporary / f"ddp-{os.getpid()}-abcdefgh", logs]
    names = ["payload.pkl", "result0.pkl", "result1.pkl", "store", "pytorch-errorfile-abcdefgh.pickle"]
    for folder in folders:
        folder.mkdir(exist_ok=True)
        for name in names:
            (folder / name).write_bytes(trap)
    monkeypatch.chdir(logs)
    assert spawn(lambda rank: rank, log_dir=logs, show=False) == [0, 1]
    assert not (tmp_path / "sprung").exists()
    for folder in folders:
        assert all((folder / name).read_bytes() == trap for name in names)


def test_a_trap_would_be_seen(tmp_path):
    pickle.loads(pickle.dumps(Trap(tmp_path / "sprung")))
    assert (tmp_path / "sprung").exists()


def test_what_a_launch_writes_lies_where_no_other_user_can_come(temporary):
    def work(rank):
        root = next(temporary.glob("ddp-*"))
        return {oct(path.stat().st_mode & 0o777) for path in (root, *root.glob("launch-*"))}

    before = os.umask(0)  # as open as can be
    try:
        assert spawn(work, show=False) == [{"0o700"}, {"0o700"}]
    finally:
        os.umask(before)


@pytest.mark.parametrize("planted", ["folder", "link"])
def test_a_folder_that_another_put_in_the_own_ones_place_is_not_used(
    temporary, planted, tmp_path, monkeypatch
):
    first = _folder.root_folder()
    first.rmdir()  # by hand, or by what cleans the temporary folder of old files
    if planted == "folder":
        first.mkdir(0o777)
        as_another_user(monkeypatch)
    else:
        theirs = tmp_path / "theirs"
        theirs.mkdir()
        first.symlink_to(theirs)
    assert _folder.root_folder() != first


HOLDS = """
import sys
from ddp_src import _folder
print(_folder.root_folder(), flush=True)
sys.stdin.read()
"""


def test_the_folder_of_a_process_whose_number_means_nothing_here_is_not_swept(temporary, left_name):
    """Containers that share a temporary folder have numbers of their own for their processes."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDS],
        env=os.environ | {"TMPDIR": str(temporary)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        Path(holder.stdout.readline().strip()).rename(temporary / left_name)
        _folder._sweep()
        assert (temporary / left_name).exists()
    finally:
        holder.communicate(timeout=60)
    _folder._sweep()
    assert not (temporary / left_name).exists()
