"""What notebooks need and scripts don't: showing a function's source, and showing an error on purpose."""

from __future__ import annotations

import ast
import inspect
import linecache
import re
import sys
import textwrap
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType, TracebackType

from IPython import get_ipython
from IPython.display import display

_PACKAGE = __name__.partition(".")[0]


@dataclass(frozen=True)
class Source:
    """A piece of source that JupyterLab and code hosts show highlighted, in the reader's own colours."""

    place: str
    code: str

    def __repr__(self) -> str:
        return f"{self.place}\n\n{self.code}"

    def _repr_markdown_(self) -> str:
        fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`{3,}", self.code))])
        return f"**`{self.place}`**\n\n{fence}python\n{self.code}\n{fence}"


def show_source(*objects: FunctionType | type | ModuleType) -> None:
    """Display the source of functions, classes or modules, each under its file and line.

    The file is named from the repository's root (of a library: from its package), a cell by its number.
    Of something that has no Python source, one sentence says so.
    """
    for thing in objects:
        try:
            display(_source(inspect.unwrap(thing)))
        except (TypeError, OSError):
            name = getattr(thing, "__name__", repr(thing))
            print(f"{name} has no Python source to show; it is built in, compiled, or not a definition.")
            print(f"{name} 没有可以显示的 Python 源码：它是内建或编译好的，或者不是一个定义。")


class shows:
    """`with shows(RankFailed):` prints the error that the block raises, as a reader meets it, and goes on.

    Fails with AssertionError when the block raises nothing; an error of another type passes through.
    """

    def __init__(self, error_type: type[BaseException]) -> None:
        self.error_type = error_type

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if error is None:
            name = self.error_type.__name__
            raise AssertionError(
                f"{name} was expected here, but nothing was raised.\n这里应当出现 {name}，却没有任何报错。"
            )
        if not isinstance(error, self.error_type):
            return False
        print(_as_met(error, trace))
        return True


def _source(thing: FunctionType | type | ModuleType) -> Source:
    if isinstance(thing, type) and not hasattr(sys.modules.get(thing.__module__), "__file__"):
        lines, first, file = _class_in_cell(thing)
    else:
        lines, first = inspect.getsourcelines(thing)
        file = inspect.getsourcefile(thing) or inspect.getfile(thing)
    return Source(f"{_place(file)}:{first or 1}", textwrap.dedent("".join(lines)).strip("\n"))


def _class_in_cell(cls: type) -> tuple[list[str], int, str]:
    """`inspect` finds no class of a cell, whose module has no file: look through the cells, last first."""
    shell = get_ipython()
    for file in reversed(linecache.cache if shell else {}):
        if shell.compile.format_code_name(file):
            lines = linecache.getlines(file)
            for node in ast.walk(ast.parse("".join(lines))):
                if isinstance(node, ast.ClassDef) and node.name == cls.__name__:
                    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                    return lines[first - 1 : node.end_lineno], first, file
    raise OSError(f"no cell defines {cls}")


def _place(file: str) -> str:
    """A cell as `Cell In[3]`, a file of a package from that package on: the same on every machine."""
    shell = get_ipython()
    cell = shell and shell.compile.format_code_name(file)
    if cell:
        return " ".join(cell)
    roots = [Path(entry).resolve() for entry in sys.path if entry]
    path = Path(file).resolve()
    inside = [path.relative_to(root).as_posix() for root in roots if path.is_relative_to(root)]
    return min(inside, key=len, default=path.name)


def _as_met(error: BaseException, trace: TracebackType | None) -> str:
    """The text under a cell that raised this, with frames unless the error is written for the reader."""
    rendered = getattr(error, "_render_traceback_", None)
    if rendered:
        return "\n".join(rendered())
    if type(error).__module__.partition(".")[0] == _PACKAGE:
        return f"{type(error).__name__}: {error}"
    return "\n".join([*_frames(trace), *"".join(traceback.format_exception_only(error)).splitlines()])


def _frames(trace: TracebackType | None) -> list[str]:
    """The frames in cells and in this package, and the last one; those between are counted."""
    frames = traceback.extract_tb(trace)
    lines, hidden = ["Traceback (most recent call last):"], 0
    for n, frame in enumerate(frames):
        place = _place(frame.filename)
        if not place.startswith(("Cell ", f"{_PACKAGE}/")) and 0 < n < len(frames) - 1:
            hidden += 1
            continue
        if hidden:
            lines.append(f"  … {hidden} more")
            hidden = 0
        lines += [f"  {place}, line {frame.lineno}, in {frame.name}", f"    {frame.line or '…'}"]
    return lines
