"""A launch's private folder, and the removal of what killed processes left."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import process, resource_tracker
from pathlib import Path

from ddp_src._failures import LaunchRefused

_root: Path | None = None


@contextmanager
def private_folder() -> Iterator[Path]:
    """A folder for one launch that only this user can read. Logs left in it stay until this process ends."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="launch-", dir=root_folder()))
    except OSError as error:
        raise LaunchRefused(
            f"no temporary folder can be made ({error}): free some space, or set TMPDIR to a folder that "
            "can be written and restart.",
            f"无法创建临时目录（{error}）：请腾出空间，或把 TMPDIR 设为可写的目录后重新启动。",
        ) from None
    try:
        yield folder
    finally:
        _remove_semaphores(folder)
        for path in folder.iterdir():
            if path.suffix != ".log":
                remove(path)
        if not any(folder.iterdir()):
            folder.rmdir()


def remove(path: Path) -> None:
    """Remove a file of a launch. On Windows one that a process still has open stays until the end."""
    with contextlib.suppress(PermissionError):
        path.unlink(missing_ok=True)


def keep_files_in(folder: Path) -> None:
    """Let what multiprocessing makes in this rank, and in its children, go with the folder of its launch."""
    config = process.current_process()._config
    config["tempdir"] = str(folder)
    if sys.platform == "linux":  # elsewhere the name may be too long, and nobody could list it
        config["semprefix"] = _semaphore_prefix(folder)


def _semaphore_prefix(folder: Path) -> str:
    return f"/{folder.parent.name}-{folder.name}"


def _remove_semaphores(folder: Path) -> None:
    """A rank that was killed has left its semaphores, which Linux shows as files."""
    for path in Path("/dev/shm").glob(f"sem.{_semaphore_prefix(folder)[1:]}-*"):
        path.unlink(missing_ok=True)
        resource_tracker.unregister("/" + path.name.removeprefix("sem."), "semaphore")


def root_folder() -> Path:
    """The folder of this process, for its launches and for what multiprocessing writes; goes with it."""
    global _root
    prefix = f"ddp-{os.getpid()}-"  # a process that was forked off makes its own
    if _root is None or not _is_own(_root) or not _root.name.startswith(prefix):
        _sweep()
        _root = Path(tempfile.mkdtemp(prefix=prefix))
        atexit.register(_remove, _root, os.getpid())
        _remove_when_killed(_root)
        _hold(_root)
        # The warm server's socket would lie in a folder that a killed process leaves behind.
        process.current_process()._config["tempdir"] = str(_root)
    return _root


def _remove(root: Path, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(root, ignore_errors=True)


def _remove_when_killed(root: Path) -> None:
    """Let a shell wait for the end of this process, however it ends, and remove the folder then.

    The pipe's other end is closed by the kernel when this process is gone.
    """
    if os.name != "posix":
        return
    waits = 'exec 3<&0; (cat <&3; rm -rf -- "$1" /dev/shm/sem."${1##*/}"-*) >/dev/null 2>&1 &'
    reader, writer = os.pipe()
    try:
        subprocess.run(["sh", "-c", waits, "sh", root], stdin=reader, start_new_session=True, check=False)
    except OSError:
        os.close(writer)  # no shell: the folder is swept by the next process that makes one
    finally:
        os.close(reader)


def _sweep() -> None:
    """Remove the folders of this user's processes that were killed before they could do it."""
    if not hasattr(os, "getuid"):
        return
    for left in Path(tempfile.gettempdir()).iterdir():
        named = re.fullmatch(r"ddp-(\d{1,9})-[a-z0-9_]{8}", left.name)
        if named and _is_own(left) and not _is_alive(int(named[1])) and not _is_held(left):
            shutil.rmtree(left, ignore_errors=True)


def _is_own(folder: Path) -> bool:
    """Whether it is there, no link, and this user's: another user may have put theirs in its place."""
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(found.st_mode) and (not hasattr(os, "getuid") or found.st_uid == os.getuid())


def _hold(folder: Path) -> None:
    """Lock a folder as long as this process lives, for those in other containers, who know no pid of it."""
    if os.name == "posix":
        import fcntl

        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_SH)


def _is_held(folder: Path) -> bool:
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
