"""The harness of known mistakes, on a project of two files."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from breaks import Break, copy_tree, run_rows

TEST = "tests/test_twice.py::test_two_is_four"
CAUGHT = Break("twice.py", "2 * x", "3 * x", TEST)
NOT_CAUGHT = Break("twice.py", "# doubles", "# triples", TEST)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "twice.py").write_text("# doubles\ndef twice(x):\n    return 2 * x\n")
    (tmp_path / "tests/test_twice.py").write_text(
        "import pytest\nfrom twice import twice\n\n"
        "def test_two_is_four():\n    assert twice(2) == 4\n\n"
        "def test_red_anyway():\n    assert twice(2) == 5\n\n"
        "def test_skipped():\n    pytest.skip('not here')\n"
    )
    (tmp_path / ".gitignore").write_text("ignored\n")
    (tmp_path / "ignored").touch()
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    return tmp_path


def verdicts(project: Path, capsys: pytest.CaptureFixture[str], *rows: Break) -> tuple[bool, list[str]]:
    all_red = run_rows(project, rows)
    return all_red, [line.split(": twice.py")[0] for line in capsys.readouterr().out.splitlines()]


def test_a_mistake_that_its_test_sees_is_red(project: Path, capsys):
    assert verdicts(project, capsys, CAUGHT) == (True, ["red", "1 of 1 mistakes are caught"])


def test_a_mistake_that_its_test_does_not_see_is_told_and_fails_the_run(project: Path, capsys):
    all_red, lines = verdicts(project, capsys, CAUGHT, NOT_CAUGHT)
    assert (all_red, lines) == (False, ["red", "NOT CAUGHT", "1 of 2 mistakes are caught"])


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (Break("twice.py", "4 * x", "", TEST), "NOT CAUGHT (the old text occurs 0 times)"),
        (Break("twice.py", "x", "y", TEST), "NOT CAUGHT (the old text occurs 2 times)"),
        (Break("gone.py", "x", "y", TEST), "NOT CAUGHT (the old text occurs 0 times)"),
        (Break("twice.py", "2 * x", "2 *", TEST), "NOT CAUGHT (pytest exit status 4)"),
        (
            Break("twice.py", "2 * x", "3 * x", "tests/test_twice.py::test_red_anyway"),
            "its test fails unbroken",
        ),
        (Break("twice.py", "2 * x", "3 * x", "tests/test_twice.py::test_gone"), "its test fails unbroken"),
    ],
)
def test_a_row_that_shows_nothing_is_not_red(project: Path, capsys, row: Break, verdict: str):
    all_red = run_rows(project, [row])
    assert not all_red
    assert verdict in capsys.readouterr().out


def test_a_skip_is_not_red_where_skips_fail_a_run(project: Path, capsys, monkeypatch):
    monkeypatch.setenv("CI", "true")
    shutil.copy2(Path(__file__).with_name("conftest.py"), project / "tests")
    row = Break("twice.py", "2 * x", "3 * x", "tests/test_twice.py::test_skipped")
    assert verdicts(project, capsys, row) == (False, ["NOT CAUGHT", "0 of 1 mistakes are caught"])


def test_the_tree_itself_stays_as_it_was(project: Path, tmp_path_factory):
    before = {path: path.read_bytes() for path in project.rglob("*.py")}
    run_rows(project, [CAUGHT])
    assert {path: path.read_bytes() for path in project.rglob("*.py")} == before
    copy = tmp_path_factory.mktemp("copy")
    copy_tree(project, copy)
    names = sorted(str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file())
    assert names == [".gitignore", "tests/test_twice.py", "twice.py"]


def test_an_unknown_word_is_refused():
    script = Path(__file__).with_name("breaks.py")
    result = subprocess.run([sys.executable, script, "no such row"], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (2, "")
    assert "no row has 'no such row'" in result.stderr
    assert "没有哪一行" in result.stderr
