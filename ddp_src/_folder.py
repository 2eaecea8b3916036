"""A launch's private folder, and the removal of what killed processes left."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_root: Path | None = None


@contextmanager
def private_folder() -> Iterator[Path]:
    """A folder for one launch that only this user can read. Logs left in it stay until this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="launch-", dir=_root_of_this_process()))
    try:
        yield folder
    finally:
        for path in folder.iterdir():
            if path.suffix != ".log":
                path.unlink(missing_ok=True)
        if not any(folder.iterdir()):
            folder.rmdir()


def _root_of_this_process() -> Path:
    global _root
    prefix = f"ddp-{os.getpid()}-"  # a process that was forked off makes its own
    if _root is None or not _root.exists() or not _root.name.startswith(prefix):
        _sweep()
        _root = Path(tempfile.mkdtemp(prefix=prefix))
        atexit.register(_remove, _root, os.getpid())
    return _root


def _remove(root: Path, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(root, ignore_errors=True)


def _sweep() -> None:
    """Remove the folders of this user's processes that were killed before they could do it."""
    if not hasattr(os, "getuid"):
        return
    for left in Path(tempfile.gettempdir()).iterdir():
        named = re.fullmatch(r"ddp-(\d{1,9})-[a-z0-9_]{8}", left.name)
        try:
            if named and left.lstat().st_uid == os.getuid() and not _is_alive(int(named[1])):
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
