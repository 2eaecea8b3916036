"""A launch's private folder, and the removal of what killed processes left."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_root: Path | None = None


@contextmanager
def private_folder() -> Iterator[Path]:
    """A folder for one launch that only this user can read. After a failure the logs in it stay
    until this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="launch-", dir=_root_of_this_process()))
    try:
        yield folder
    except BaseException:
        for path in folder.iterdir():
            if path.suffix != ".log":
                path.unlink()
        raise
    shutil.rmtree(folder)


def _root_of_this_process() -> Path:
    global _root
    if _root is None or not _root.exists():
        _sweep()
        _root = Path(tempfile.mkdtemp(prefix=f"ddp-{os.getpid()}-"))
        atexit.register(shutil.rmtree, _root, ignore_errors=True)
    return _root


def _sweep() -> None:
    """Remove the folders of this user's processes that were killed before they could do it."""
    if not hasattr(os, "getuid"):
        return
    for left in Path(tempfile.gettempdir()).glob("ddp-[0-9]*-*"):
        pid = int(left.name.split("-")[1])
        try:
            if left.stat().st_uid == os.getuid() and not _is_alive(pid):
                shutil.rmtree(left, ignore_errors=True)
        except FileNotFoundError:
            continue  # another process swept it first


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
