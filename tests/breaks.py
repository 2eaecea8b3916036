"""Known mistakes, each planted in a copy of the project: the test named beside it must turn red.

    ./launch.sh test --breaks [WORD]     only the rows with WORD in their file or test

Prints "red" or "NOT CAUGHT" per row; exits 1 if a mistake is not caught, or can no longer be planted.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Break:
    """`old`, which occurs once in `file`, becomes `new`; then `test` (a pytest node id) must fail."""

    file: str
    old: str
    new: str
    test: str


ROWS = [
    Break(
        "launch.sh",
        'refuse() { say "$@"; exit 2; }',
        'refuse() { say "$@"; exit 0; }',
        "tests/test_launch_sh.py::test_a_wrong_word_gets_the_usage_and_status_2",
    ),
    Break(
        "launch.sh",
        'ready() { [ -x "$venv/bin/python" ]',
        'ready() { [ -x "$venv/bin/python" ] && return',
        "tests/test_launch_sh.py::test_a_killed_setup_is_begun_again",
    ),
    Break(
        "launch.sh",
        '  [ ! -s "$unfinished" ] || mv "$unfinished" "$venv/ddp-setup"\n',
        "",
        "tests/test_launch_sh.py::test_an_update_that_fails_leaves_a_complete_environment_complete",
    ),
    Break(
        "launch.sh",
        "    sys.exit(75)",
        "    sys.exit(0)",
        "tests/test_launch_sh.py::test_two_setups_at_once_make_one_environment",
    ),
    Break(
        "tests/conftest.py",
        'report.outcome = "failed"',
        'report.outcome = "skipped"',
        "tests/test_conftest.py::test_a_skip_fails_the_run_in_ci_alone",
    ),
    Break(
        "notebooks/conftest.py",
        "system_raise_on_error = True",
        "system_raise_on_error = False",
        "tests/test_conftest.py::test_a_shell_command_that_fails_fails_its_notebook",
    ),
]


def copy_tree(source: Path, target: Path) -> None:
    """Copy what git would commit, and what is not yet added, but nothing that it ignores."""
    names = subprocess.run(
        ["git", "-C", source, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in filter(None, names.split("\0")):
        if (source / name).is_file():  # one deleted but not yet committed is still listed
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, target / name)


def run_tests(tree: Path, *tests: str) -> int:
    """pytest's exit status in `tree`, whose own ddp_src comes before the installed one."""
    env = os.environ | {"PYTHONPATH": str(tree)}
    env.pop("CI", None)  # there a skip fails, and would pass for "red"
    options = ["-q", "-x", "-o", "addopts=", "-p", "no:cacheprovider", "-p", "no:nbmake"]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    return subprocess.run(
        command, cwd=tree, env=env, stdin=subprocess.DEVNULL, capture_output=True
    ).returncode


def try_row(source: Path, row: Break) -> str:
    """Plant one mistake in a fresh copy: "red" if its test fails, else what is wrong."""
    with tempfile.TemporaryDirectory(prefix="ddp-breaks-") as folder:
        tree = Path(folder)
        copy_tree(source, tree)
        path = tree / row.file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if (occurs := text.count(row.old)) != 1:
            return f"NOT CAUGHT (the old text occurs {occurs} times)"
        path.write_text(text.replace(row.old, row.new), encoding="utf-8")
        status = run_tests(tree, row.test)
    if status == 1:
        return "red"
    return "NOT CAUGHT" if status == 0 else f"NOT CAUGHT (pytest exit status {status})"


def green_before(source: Path, tests: Sequence[str]) -> set[str]:
    """Those of `tests` that pass with no mistake planted; a test that is red anyway shows nothing."""
    with tempfile.TemporaryDirectory(prefix="ddp-breaks-") as folder:
        copy_tree(source, Path(folder))
        if run_tests(Path(folder), *tests) == 0:
            return set(tests)
        return {test for test in tests if run_tests(Path(folder), test) == 0}


def run_rows(source: Path, rows: Sequence[Break]) -> bool:
    """Try each row and print its verdict; True if all are red."""
    green = green_before(source, list(dict.fromkeys(row.test for row in rows)))
    verdicts = []
    for row in rows:
        verdict = try_row(source, row) if row.test in green else "NOT CAUGHT (its test fails unbroken)"
        verdicts.append(verdict)
        print(f"{verdict}: {row.file}: {row.old.strip()!r} -> {row.new.strip()!r}: {row.test}", flush=True)
    caught = verdicts.count("red")
    print(f"{caught} of {len(rows)} mistakes are caught")
    return caught == len(rows)


def main() -> int:
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    rows = [row for row in ROWS if word in row.file or word in row.test]
    if not rows:
        print(f"no row has {word!r} in its file or test", file=sys.stderr)
        print(f"没有哪一行的文件或测试含有 {word!r}", file=sys.stderr)
        return 2
    return 0 if run_rows(Path(__file__).resolve().parent.parent, rows) else 1


if __name__ == "__main__":
    sys.exit(main())
