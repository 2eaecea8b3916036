"""What travels to the ranks: a function and its arguments, by value."""

from __future__ import annotations

import io
import marshal
import types
from collections import ChainMap
from collections.abc import Callable
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


def culprit(fn: Callable, args: tuple) -> str:
    """Name the part of `fn(*args)` that cannot be pickled."""
    for index, value in enumerate(args):
        if not _travels(value):
            return f"args[{index}] ({type(value).__name__})"
    return f"the function {getattr(fn, '__name__', fn)!r}"


def _travels(value: object) -> bool:
    try:
        dumps(value)
    except Exception:
        return False
    return True
