"""Write files whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def whole_file(path: str | Path) -> Iterator[BinaryIO]:
    """Open a new file that takes the place of `path` when the block ends without an error.

    It is written under another name in the same folder, flushed to the disk and renamed, so that a
    reader, a kill or a full disk meets the old file or the new one, never half of one. Raises OSError.
    """
    fresh = Path(f"{path}.new")
    try:
        with open(fresh, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)
