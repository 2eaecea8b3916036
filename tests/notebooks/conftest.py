"""A tiny tree with one chapter, run once, of which each test gets a copy to spoil."""

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "notebooks"))

CHAPTER = """\
# %% [markdown] id="title" lang="en"
# # A tiny chapter
#
# Three quarters are 0.75, and see [the readme](../../README.md).

# %% [markdown] id="title" lang="zh" sync="fb3de5f9:18912263"
# # 小小的一章
#
# 四分之三是 0.75，
# 另见[说明](../../README.zh.md)。

# %% id="number"
from ddp_src.lessons import tiny

print(tiny.three_quarters())

# %% id="picture"
tiny.plots.line()

# %% [markdown] id="picture-alt" alt="picture" lang="en"
# One line,
# rising from 0 to 1.

# %% [markdown] id="picture-alt" alt="picture" lang="zh" sync="8d75fa0c:54560821"
# 一条线，
# 从 0 升到 1。
"""
TREE = {
    "notebooks/src/00_tiny.py": CHAPTER,
    "README.md": "[the chapter](notebooks/en/00_tiny.ipynb) · [中文](README.zh.md)\n",
    "README.zh.md": "[这一章](notebooks/zh/00_tiny.ipynb) · [English](README.md)\n",
    "ddp_src/__init__.py": '_WHERE = {"spawn": "launch"}\n',
    "ddp_src/launch.py": "spawn = None\n",
    "ddp_src/unused.py": "",
    "ddp_src/plots.py": (
        "def line():\n    import matplotlib.pyplot as plt\n\n    plt.plot([0, 1])\n    plt.show()\n"
    ),
    "ddp_src/lessons/__init__.py": "",
    "ddp_src/lessons/tiny.py": "from .. import plots\n\n\ndef three_quarters():\n    return 3 / 4\n",
}


@dataclass
class House:
    """The tree at `root`, and what its commands print."""

    root: Path
    capsys: pytest.CaptureFixture

    def __call__(self, *words: str) -> tuple[int, list[str]]:
        """Exit status and the lines on stdout of one command."""
        from build import main

        self.capsys.readouterr()
        status = main(list(words), self.root)
        return status, self.capsys.readouterr().out.splitlines()

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def change(self, name: str, old: str, new: str) -> None:
        text = (self.root / name).read_text(encoding="utf-8")
        assert text.count(old) == 1
        self.write(name, text.replace(old, new))

    def source(self, old: str, new: str) -> None:
        self.change("notebooks/src/00_tiny.py", old, new)

    def path(self, lang: str) -> Path:
        return self.root / "notebooks" / lang / "00_tiny.ipynb"

    def notebook(self, lang: str) -> dict:
        """Cell id -> cell of one edition."""
        return {cell.id: cell for cell in nbformat.read(self.path(lang), as_version=4).cells}


@pytest.fixture(scope="session")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from build import main

    root = tmp_path_factory.mktemp("house")
    for name, text in TREE.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    assert main(["run"], root) == 0
    return root


@pytest.fixture
def house(executed: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> House:
    """A tree in which everything is right."""
    shutil.copytree(executed, tmp_path / "tree", ignore=shutil.ignore_patterns("__pycache__"))
    return House(tmp_path / "tree", capsys)
