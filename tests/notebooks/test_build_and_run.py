"""Built notebooks: the same bytes each time, the same outputs in both editions, nothing of this machine."""

import base64
import json
import subprocess
import sys
from pathlib import Path

import build
import nbformat
import pytest
from machine.build import render
from machine.clean import clean_text
from machine.execute import RunFailed, execute
from machine.prose import markdown
from machine.source import read_chapter


def test_building_twice_gives_the_same_bytes(house):
    first = {lang: house.path(lang).read_bytes() for lang in ("en", "zh")}
    for lang in first:
        house.path(lang).write_text(json.dumps(json.loads(first[lang]), indent=4), encoding="utf-8")
    assert house("build") == (0, ["00_tiny: built"])
    assert {lang: house.path(lang).read_bytes() for lang in ("en", "zh")} == first


def test_cells_are_numbered_by_their_place_whatever_a_session_left(house):
    before = house.path("en").read_bytes()
    house.change("notebooks/en/00_tiny.ipynb", '"execution_count": 2', '"execution_count": 17')
    house("build")
    assert house.path("en").read_bytes() == before


def test_each_edition_is_a_valid_notebook_in_its_language(house):
    for lang, title, text in (
        ("en", "A tiny chapter", "Three quarters are"),
        ("zh", "小小的一章", "四分之三是"),
    ):
        notebook = nbformat.read(house.path(lang), as_version=4)
        nbformat.validate(notebook)
        assert [cell.id for cell in notebook.cells] == ["title", "number", "picture", "picture-alt"]
        assert notebook.metadata.title == title
        assert text in notebook.cells[0].source
        assert set(notebook.metadata) == {"ddp", "kernelspec", "language_info", "title"}
        assert all(cell.metadata == {} for cell in notebook.cells)
        raw = house.path(lang).read_bytes()
        assert raw.startswith(b'{\n "cells"') and raw.endswith(b"}\n") and b"\r" not in raw


def test_run_stores_the_same_outputs_in_both_editions(house):
    english, chinese = house.notebook("en"), house.notebook("zh")
    assert english["number"].outputs == [{"name": "stdout", "output_type": "stream", "text": "0.75\n"}]
    assert [english[name].execution_count for name in ("number", "picture")] == [1, 2]
    pictures = []
    for notebook in (english, chinese):
        (picture,) = notebook["picture"].outputs
        pictures.append((picture.metadata["image/png"].pop("alt"), picture))
    assert pictures[0][1] == pictures[1][1]
    assert english["number"] == chinese["number"]
    assert [alt for alt, _ in pictures] == ["One line, rising from 0 to 1.", "一条线，从 0 升到 1。"]
    png = base64.b64decode(pictures[0][1].data["image/png"])
    assert png.startswith(b"\x89PNG") and b"Software" not in png and b"tEXt" not in png


def test_alt_text_stands_below_the_picture_too(house):
    assert house.notebook("zh")["picture-alt"].source == (
        "<details><summary>图中内容的文字描述</summary>\n\n一条线，从 0 升到 1。\n\n</details>"
    )
    assert house.notebook("en")["picture-alt"].source == (
        "<details><summary>The figure in words</summary>\n\nOne line,\nrising from 0 to 1.\n\n</details>"
    )


def test_run_leaves_alone_what_is_not_stale(house, monkeypatch):
    monkeypatch.setattr(build, "execute", lambda *_: pytest.fail("nothing is stale"))
    before = house.path("en").read_bytes()
    assert house("run") == (0, ["00_tiny: built"])
    assert house.path("en").read_bytes() == before


@pytest.mark.parametrize(
    "spoil",
    [
        lambda house: house.source("print(tiny", "print (tiny"),
        lambda house: house.change("ddp_src/plots.py", "[0, 1]", "[0, 2]"),
        lambda house: house.path("en").unlink(),
        lambda house: house.change(
            "notebooks/en/00_tiny.ipynb", '"execution_count": 1', '"execution_count": null'
        ),
    ],
    ids=["cell", "module", "no notebook", "no output"],
)
def test_run_executes_what_is_stale(house, monkeypatch, spoil):
    spoil(house)
    ran = []
    monkeypatch.setattr(build, "execute", lambda chapter, root: ran.append(chapter.stem))
    house("run", "00")
    assert ran == ["00_tiny"]


def test_a_changed_cell_loses_its_outputs_and_the_others_keep_theirs(house):
    house.source("print(tiny", "print (tiny")
    house("build")
    for lang in ("en", "zh"):
        notebook = house.notebook(lang)
        assert notebook["number"].outputs == [] and notebook["number"].execution_count is None
        assert len(notebook["picture"].outputs) == 1


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ('print("before")\nraise ValueError("too small")', "ValueError: too small"),
        ("# !false", "CalledProcessError"),
        ("import os\nos._exit(3)", "Kernel died"),
    ],
    ids=["exception", "shell", "kernel"],
)
def test_a_failing_cell_is_reported_and_nothing_is_stored(house, capsys, code, said):
    before = {lang: house.path(lang).read_bytes() for lang in ("en", "zh")}
    house.source("tiny.plots.line()", f"{code}\npass")
    capsys.readouterr()
    assert build.main(["run"], house.root) == 1
    error = capsys.readouterr().err
    assert error.startswith(
        "00_tiny picture: this cell failed, so nothing of the chapter was stored; mend it and run again.\n"
        "00_tiny picture：这个单元格失败了，这一章什么都没有保存；改好后再运行。\n"
    )
    assert said in error
    assert "\x1b" not in error and str(house.root) not in error
    assert {lang: house.path(lang).read_bytes() for lang in ("en", "zh")} == before


def test_a_cell_that_does_not_end_is_ended(house):
    house.source("tiny.plots.line()", "while True:\n    pass")
    chapter = read_chapter(house.root / "notebooks/src/00_tiny.py")
    with pytest.raises(RunFailed, match="00_tiny picture: this cell failed"):
        execute(chapter, house.root, timeout=1)


def test_outputs_hold_nothing_of_this_machine():
    root, home = Path("/somewhere/repo"), str(Path.home())
    said = {
        "/somewhere/repo/ddp_src/x.py:3": "…/ddp_src/x.py:3",
        "/somewhere/repository": "/somewhere/repository",
        "in '/tmp/ipykernel_12/33.py', /tmp/a/b/rank0.log": "in '…/33.py', …/rank0.log",
        f"{home}/lib/x.py": "~/lib/x.py",
        "<object at 0x7f1234567890>": "<object at 0x…>",
        "a\r\nb": "a\nb",
        "3 / 4 of a/tmp/b": "3 / 4 of a/tmp/b",
    }
    assert {text: clean_text(text, root) for text in said} == said


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("一行，\n又一行\n再一行", "一行，又一行再一行"),
        ("一个 rank\n有自己的", "一个 rank\n有自己的"),
        ("用 DDP\n，然后，\nPyTorch", "用 DDP，然后，PyTorch"),
        ("是**粗体**\n**之后**", "是**粗体****之后**"),
        ("一段。\n\n“二段”", "一段。\n\n“二段”"),
        ("## 标题\n正文", "## 标题\n正文"),
        ("- 一项，\n  续行\n- 二项。\n1. 三", "- 一项，续行\n- 二项。\n1. 三"),
        ("| 甲 |\n| 乙 |", "| 甲 |\n| 乙 |"),
        ("前\n\n```text\n甲\n乙\n```\n\n后", "前\n\n```text\n甲\n乙\n```\n\n后"),
    ],
)
def test_chinese_lines_are_joined_without_a_space(tmp_path, source, shown):
    path = tmp_path / "00_x.py"
    lines = "\n".join(f"# {line}" for line in source.splitlines())
    head = '# %% [markdown] id="t" lang="en"\n# # T\n# %% [markdown] id="a" lang="en"\n# t\n'
    path.write_text(f'{head}# %% [markdown] id="a" lang="zh"\n{lines}\n', encoding="utf-8")
    chapter = read_chapter(path)
    assert markdown(chapter.cells[1], "zh") == shown
    assert json.loads(render(chapter, "zh", None))["cells"][1]["source"] == shown.splitlines(keepends=True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "the following arguments are required: build | run | check | ack"),
        (["publish"], "invalid choice: 'publish'"),
        (["build", "--fast"], "unrecognized arguments: --fast"),
        (["ack", "00"], "the following arguments are required: ID"),
    ],
)
def test_wrong_words_get_the_usage_and_status_2(words, said, capsys):
    with pytest.raises(SystemExit) as ended:
        build.main(words)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("usage: build.py") and said in error


def test_it_runs_from_any_folder(tmp_path):
    command = [sys.executable, build.__file__, "run", "98", "99"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, encoding="utf-8")
    assert ended.returncode == 2
    assert ended.stderr.startswith('there is no chapter "98"; write two digits, the chapters are: ')
    assert len(ended.stderr.splitlines()) == 2
