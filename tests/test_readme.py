"""The two READMEs and chapter 00 say the same: the table of lines to change, whose code is Python."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    "README.md": "## Your own script → DDP",
    "README.zh.md": "## 你自己的脚本 → DDP",
}


def rows(text: str, heading: str) -> list[list[str]]:
    """The cells of the first table after `heading`, with the links taken off."""
    after = text[text.index(heading) :]
    table = re.search(r"(?:^(?:# )?\|.*\n)+", after, flags=re.M).group()
    table = re.sub(r"\[(\d\d)\]\([^)]*\)", r"\1", table)
    return [[cell.strip() for cell in line.strip("# ").split("|")[1:-1]] for line in table.splitlines()]


@pytest.mark.parametrize(("page", "heading"), PAGES.items())
def test_the_table_is_the_chapters(page, heading):
    chapter = (ROOT / "notebooks/src/00_quickstart.py").read_text(encoding="utf-8")
    found = rows((ROOT / page).read_text(encoding="utf-8"), heading)
    assert len(found) == 2 + 12  # heading, ruler, a dozen lines
    assert found == rows(chapter, f"# {heading}")


def test_both_languages_change_the_same_lines_in_the_same_order():
    tables = [rows((ROOT / page).read_text(encoding="utf-8"), heading) for page, heading in PAGES.items()]
    code = [[re.findall("`[^`]+`", " | ".join(row[1:3])) for row in table] for table in tables]
    assert code[0] == code[1]
    assert [row[3] for row in tables[0][2:]] == [row[3] for row in tables[1][2:]]


def test_the_code_in_the_table_is_python():
    table = rows((ROOT / "README.md").read_text(encoding="utf-8"), PAGES["README.md"])
    lines = [code for row in table[3:] for code in re.findall("`([^`]+)`", " | ".join(row[1:3]))]
    assert len(lines) > 12
    for line in lines:
        ast.parse(line)
