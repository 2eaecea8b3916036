"""What travels to the ranks: a function and its arguments, by value."""

from __future__ import annotations

import io
import marshal
import pickle
import types
from collections import ChainMap
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import cloudpickle


class _Pickler(cloudpickle.Pickler):
    """cloudpickle, but a cell's code keeps its file name, which an error in it has to name."""

    dispatch_table: ClassVar = ChainMap(
        {types.CodeType: lambda code: (marshal.loads, (marshal.dumps(code),))},
        cloudpickle.Pickler.dispatch_table,
    )


def dumps(value: object) -> bytes:
    """Pickle by value what only this process has; tensors are copied, not shared.

    The bytes are for ranks of the same Python. Raises what pickling raises.
    """
    buffer = io.BytesIO()
    _Pickler(buffer).dump(value)
    return buffer.getvalue()


_loading = False


def load(path: Path) -> object:
    """Read what `dumps` made; the modules that it names are imported meanwhile."""
    global _loading
    _loading = True
    try:
        return pickle.loads(path.read_bytes())
    finally:
        _loading = False


def is_loading() -> bool:
    """Whether this is a rank that still imports the learner's modules and has not called the function yet."""
    return _loading


def culprit(fn: Callable, args: tuple) -> tuple[str, str]:
    """Name the part of `fn(*args)` that cannot be pickled, in English and Chinese."""
    for index, value in enumerate(args):
        if not _travels(value):
            return (f"args[{index}] ({type(value).__name__})",) * 2
    name = getattr(fn, "__name__", fn)
    return f"the function {name!r}", f"函数 {name!r}"


def _travels(value: object) -> bool:
    try:
        dumps(value)
    except Exception:
        return False
    return True
