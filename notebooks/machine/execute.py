"""Run a chapter's code once, in a kernel of its own, and hand back its notebook with clean outputs."""

import os
import re
import tempfile
from pathlib import Path

import nbformat
from jupyter_client.kernelspec import NoSuchKernel
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from ddp_src.errors import UserError

from .build import render
from .chapter import Chapter
from .clean import clean, clean_text
from .stale import ran_hash

CELL_TIMEOUT = 120  # seconds
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LAST_LINES = 15


class RunFailed(UserError):
    """A cell raised, ran too long, or took its kernel down; nothing was stored."""


def execute(chapter: Chapter, root: Path, *, timeout: int = CELL_TIMEOUT) -> NotebookNode:
    """Run every code cell in the folder of the English edition; raises RunFailed."""
    ran = ran_hash(chapter, root)
    notebook = nbformat.reads(render(chapter, "en", None), as_version=4)
    folder = root / "notebooks" / "en"
    folder.mkdir(parents=True, exist_ok=True)
    started = []
    client = NotebookClient(
        notebook,
        timeout=timeout,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
        coalesce_streams=True,
        extra_arguments=["--InteractiveShell.system_raise_on_error=True", "--Application.log_level=ERROR"],
        on_cell_execute=lambda cell, cell_index: started.append(cell.id),
    )
    try:
        with tempfile.TemporaryDirectory() as profile:
            client.execute(env=_environment(root, profile))
    except (CellExecutionError, CellTimeoutError, DeadKernelError, NoSuchKernel) as error:
        place = f"{chapter.stem} {started[-1] if started else '-'}"
        lines = clean_text(_COLOUR.sub("", str(error)), root).strip().splitlines()
        report = "\n".join(f"    {line}" for line in lines[-_LAST_LINES:])
        raise RunFailed(
            f"{place}: this cell failed, so nothing of the chapter was stored; mend it and run again.",
            f"{place}：这个单元格失败了，这一章什么都没有保存；改好后再运行。\n{report}",
        ) from error
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = clean(cell.outputs, root)
    notebook.metadata.ddp.ran = ran
    return notebook


def _environment(root: Path, profile: str) -> dict[str, str]:
    """This tree's package, pictures in the notebook, and nothing from the user's own IPython settings."""
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    inline = "module://matplotlib_inline.backend_inline"
    return {**os.environ, "PYTHONPATH": path, "MPLBACKEND": inline, "IPYTHONDIR": profile}
