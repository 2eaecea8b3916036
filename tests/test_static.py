"""What can be said without running the program: style, shell scripts, built chapters, packaging."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent


def passes(*command: str | Path) -> None:
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if result.returncode:
        pytest.fail(f"{result.stdout}{result.stderr}", pytrace=False)


@pytest.mark.parametrize("words", [["check"], ["format", "--check"]])
def test_ruff_is_content(words: list[str]):
    passes(sys.executable, "-m", "ruff", *words, ROOT)


def test_shellcheck_is_content():
    if not shutil.which("shellcheck"):
        pytest.skip("shellcheck is not installed (apt install shellcheck)")
    passes("shellcheck", ROOT / "launch.sh", ROOT / ".ci/run")


def test_committed_notebooks_fit_their_sources():
    passes(sys.executable, ROOT / "notebooks/build.py", "check")


def test_conda_environment_takes_everything_but_python_and_pip_from_pyproject():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    assert environment == {
        "name": "ddp-tutorial",
        "channels": ["conda-forge", "nodefaults"],
        "dependencies": ["python>=3.10,<3.14", "pip", {"pip": ["-e .[dev]"]}],
    }
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'requires-python = ">=3.10"' in pyproject
    assert re.search(r"^dev = \[", pyproject, flags=re.MULTILINE)


def test_workflow_runs_what_any_machine_runs():
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    commands = [step["run"] for step in workflow["jobs"]["test"]["steps"] if "run" in step]
    assert [command.split()[-1] for command in commands] == [".ci/run"]
