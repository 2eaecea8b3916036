"""The rules that the run itself keeps: skips in CI, and shell commands in notebooks."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parent.parent


def run_pytest(folder: Path, *options: str, ci: str = "") -> tuple[int, str]:
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options],
        cwd=folder,
        env=os.environ | {"CI": ci},
        capture_output=True,
        text=True,
    )
    return result.returncode, result.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy2(ROOT / "tests/conftest.py", tmp_path / "conftest.py")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu: needs a CUDA device\n")
    return tmp_path


def test_a_skip_fails_the_run_in_ci_alone(folder: Path):
    (folder / "test_a.py").write_text(
        "import pytest\n"
        "def test_by_call(): pytest.skip('no shovel')\n"
        "@pytest.mark.skip('no rake')\ndef test_by_mark(): pass\n"
    )
    (folder / "test_b.py").write_text("import pytest\npytest.skip('no spade', allow_module_level=True)\n")
    (folder / "test_c.py").write_text("def test_c(): pass\n")
    status, out = run_pytest(folder)
    assert (status, "1 passed, 3 skipped" in out) == (0, True)
    status, out = run_pytest(folder, "--continue-on-collection-errors", ci="true")
    assert (status, "1 failed, 1 passed, 2 errors" in out) == (1, True)
    for tool in ("shovel", "rake", "spade"):
        assert f"with CI=true nothing but a gpu test may be skipped. Skipped: no {tool}" in out


def test_a_gpu_test_and_an_expected_failure_may_stay(folder: Path):
    (folder / "test_a.py").write_text(
        "import pytest\n"
        "@pytest.mark.gpu\n@pytest.mark.skip('no GPU')\ndef test_gpu(): pass\n"
        "@pytest.mark.xfail\ndef test_x(): assert False\n"
    )
    status, out = run_pytest(folder, ci="true")
    assert (status, "1 skipped, 1 xfailed" in out) == (0, True)


def test_the_table_has_a_row_for_each_folder(folder: Path):
    (folder / "lessons").mkdir()
    (folder / "lessons/test_a.py").write_text("def test_a(): pass\ndef test_b(): assert False\n")
    (folder / "test_c.py").write_text("import pytest\ndef test_c(): pytest.skip('no')\n")
    _, out = run_pytest(folder)
    rows = [line.split()[:4] for line in out.split("what ran")[1].splitlines()]
    assert ["passed", "failed", "skipped", "seconds"] in rows
    assert ["lessons", "1", "1", "0"] in rows
    assert [".", "0", "0", "1"] in rows


def test_a_shell_command_that_fails_fails_its_notebook(tmp_path: Path):
    shutil.copy2(ROOT / "notebooks/conftest.py", tmp_path / "conftest.py")
    cells = {"good": "!true", "bad1": "!false", "bad2": "%%bash\nfalse", "bad3": "said = !false"}
    for name, cell in cells.items():
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])
        nbformat.write(notebook, tmp_path / f"{name}.ipynb")
    before = {path: path.read_bytes() for path in tmp_path.glob("*.ipynb")}
    status, out = run_pytest(tmp_path, "--nbmake", "-rA")
    assert (status, "3 failed, 1 passed" in out, "PASSED good.ipynb" in out) == (1, True, True)
    assert {path: path.read_bytes() for path in tmp_path.glob("*.ipynb")} == before
