"""The notebooks as they are committed: nothing to mend, and nothing of the machine that ran them."""

import re
from pathlib import Path

import build
import pytest

NOTEBOOKS = sorted(build.ROOT.glob("notebooks/??/*.ipynb"))
MACHINE = re.compile(
    r"/home/\w|/root/|/Users/\w|/tmp/|/var/folders/|[A-Z]:\\\\+Users|\bat 0x[0-9a-f]{6}|\d\d:\d\d:\d\d"
)


def test_check_finds_nothing(capsys):
    status = build.main(["check"])
    assert status == 0, capsys.readouterr().out


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_nothing_of_the_machine_that_ran_it(path: Path):
    text = re.sub(r'"image/png": "[^"]*"', "", path.read_text(encoding="utf-8"))
    assert MACHINE.findall(text) == []
