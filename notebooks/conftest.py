"""How the tests run the notebooks: a shell command that fails in a cell fails the cell."""

import os
import tempfile
from pathlib import Path

import pytest

KERNEL_CONFIG = "c.InteractiveShell.system_raise_on_error = True\n"


def pytest_configure(config: pytest.Config) -> None:
    """Give kernels a profile of their own: by default `!false` passes, and a user's may change more."""
    folder = tempfile.TemporaryDirectory(prefix="ddp-ipython-")
    config.add_cleanup(folder.cleanup)
    profile = Path(folder.name, "profile_default")
    profile.mkdir()
    Path(profile, "ipython_kernel_config.py").write_text(KERNEL_CONFIG)
    os.environ["IPYTHONDIR"] = folder.name


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if getattr(item, "nbmake", False):
            item.add_marker(pytest.mark.timeout(900))  # nbmake limits each cell to 120 s
