"""What processes that were started plainly print past the notebook: here it is caught and shown."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import torch.multiprocessing as mp


@contextmanager
def terminal() -> Iterator[None]:
    """Show what processes started in the block write by themselves, each line after `terminal |`.

    Paths of files are shortened, also in an error that `torch.multiprocessing.spawn` raises.
    """
    lines: list[str] = []
    try:
        with childrens_output() as lines:
            yield
    except (mp.ProcessExitedException, mp.ProcessRaisedException) as error:
        error.args = (_short_paths(error.args[0]),)
        raise
    finally:
        for line in lines:
            print("terminal |", _short_paths(line))


@contextmanager
def childrens_output() -> Iterator[list[str]]:
    """Catch what processes started in the block print by themselves; the list is filled at its end.

    They inherit this process's stdout and stderr, which a notebook's own `print` does not use.
    """
    lines: list[str] = []
    sys.stdout.flush()
    with tempfile.TemporaryFile() as caught:
        kept = {descriptor: os.dup(descriptor) for descriptor in (1, 2)}
        for descriptor in kept:
            os.dup2(caught.fileno(), descriptor)
        try:
            yield lines
        finally:
            for descriptor, own in kept.items():
                os.dup2(own, descriptor)
                os.close(own)
            caught.seek(0)
            lines += caught.read().decode(errors="replace").splitlines()


def _short_paths(text: str) -> str:
    return re.sub(r'File ".*[/\\](?=[^/\\]+[/\\][^/\\]+\.py")', 'File "…/', text)
