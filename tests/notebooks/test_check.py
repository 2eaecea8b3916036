"""Each rule of `build.py check`: the fault is made, and exactly that is found."""

import nbformat
import pytest

BUILD = (
    "the notebook is not what its source gives; run `build.py build`. "
    "这个 notebook 与由源文件构建的结果不同；请运行 `build.py build`。"
)
STALE = (
    "its code, or a module that it imports, changed since the outputs were made; run `build.py run 00`. "
    "代码或它导入的模块在输出生成之后改过；请运行 `build.py run 00`。"
)
EMPTY = "the cell has no outputs; run `build.py run 00`. 这个单元格没有输出；请运行 `build.py run 00`。"
DEAD = (
    "the link {0} leads nowhere; write a path that starts from this file's folder. "
    "链接 {0} 指向的文件不存在；请写从本文件所在文件夹出发的相对路径。"
)
ACK = "compare the two texts, then run `build.py ack 00 title`."
ACK_ZH = "请核对两种文字，再运行 `build.py ack 00 title`。"


def found(*findings: str, mend: int | None = None) -> tuple[int, list[str]]:
    mend = len(findings) if mend is None else mend
    return (1 if mend else 0), [*findings, f"chapters: 1, to mend: {mend}"]


def in_both(finding: str, cell: str = "") -> list[str]:
    return [f"00_tiny {lang}{cell}: {finding}" for lang in ("en", "zh")]


def test_a_right_tree_has_no_finding(house):
    assert house("check") == found()


def test_a_tree_without_chapters_has_no_finding(house, tmp_path):
    house.root = tmp_path / "empty"
    assert house("check") == (0, ["chapters: 0, to mend: 0"])


@pytest.mark.parametrize(
    ("old", "new", "en", "zh"),
    [
        (
            "Three quarters",
            "Two thirds",
            "the English text changed after it was compared",
            "上次核对之后，英文改过",
        ),
        (
            "四分之三",
            "三分之二",
            "the Chinese text changed after it was compared",
            "上次核对之后，中文改过",
        ),
        (
            ' sync="fb3de5f9:18912263"',
            "",
            "the translation was never compared with the English text",
            "译文还没有与英文核对过",
        ),
        (
            '"fb3de5f9:18912263"',
            '"00000000:00000000"',
            "both texts changed after they were compared",
            "上次核对之后，中英文都改过",
        ),
    ],
)
def test_stale_translation(house, old, new, en, zh):
    house.source(old, new)
    house("build")
    finding = f"00_tiny zh title: {en}; {ACK} {zh}；{ACK_ZH}"
    assert house("check") == found(finding)
    assert house("check", "--draft") == found(finding, mend=0)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_missing_language(house, lang):
    house.write("notebooks/src/00_tiny.py", _without(house, f'id="title" lang="{lang}"'))
    house("build")
    finding = (
        f"00_tiny {lang} title: this paragraph is missing in this language; write it. "
        "这一段缺少这种语言的文字；请补上。"
    )
    assert house("check") == found(finding)
    assert house("check", "--draft") == found(finding, mend=0)
    other = house.notebook("zh" if lang == "en" else "en")["title"].source
    assert house.notebook(lang)["title"].source == other


def test_prose_changed_but_not_built(house):
    house.source("0.75, and see", "0.75. See")
    house("ack", "00", "title")
    assert house("check") == found(f"00_tiny en: {BUILD}")


def test_notebook_edited_by_hand(house):
    house.change("notebooks/zh/00_tiny.ipynb", "小小的一章\\n", "大大的一章\\n")
    assert house("check") == found(f"00_tiny zh: {BUILD}")


def test_outputs_of_one_edition_edited_by_hand(house):
    house.change("notebooks/zh/00_tiny.ipynb", '"0.75\\n"', '"0.76\\n"')
    assert house("check") == found(f"00_tiny zh: {BUILD}", _unshown("zh", "0.75"), mend=1)


def test_missing_notebook(house):
    house.path("zh").unlink()
    assert house("check") == found(
        f"00_tiny zh: {BUILD}",
        f"00_tiny zh number: {EMPTY}",
        f"00_tiny zh picture: {EMPTY}",
        f"README.zh.md: {DEAD.format('notebooks/zh/00_tiny.ipynb')}",
    )


def test_notebook_that_cannot_be_read(house):
    house.path("en").write_text("<<<<<<< HEAD\n", encoding="utf-8")
    status, lines = house("check")
    assert status == 1
    assert lines[0] == (
        "00_tiny en: notebooks/en/00_tiny.ipynb: this is not a notebook, perhaps after a merge; delete it "
        "and run `build.py run`. "
        "notebooks/en/00_tiny.ipynb：这不是一个 notebook（也许是合并留下的）；删掉它，再运行 `build.py run`。"
    )


def test_changed_cell(house):
    house.source("print(tiny.three_quarters())", "print(tiny.three_quarters() + 0)")
    house("build")
    assert house("check") == found(
        f"00_tiny en: {STALE}",
        f"00_tiny en number: {EMPTY}",
        f"00_tiny zh: {STALE}",
        f"00_tiny zh number: {EMPTY}",
        _unshown("zh", "0.75"),
        mend=4,
    )


@pytest.mark.parametrize("module", ["lessons/tiny.py", "plots.py", "__init__.py"])
def test_changed_module(house, module):
    """A lesson, a plot module that only the lesson imports, and the package around both."""
    path = house.root / "ddp_src" / module
    path.write_text(path.read_text(encoding="utf-8") + "\n# changed\n", encoding="utf-8")
    assert house("check") == found(*in_both(STALE))


def test_changed_module_that_the_chapter_does_not_use(house):
    house.write("ddp_src/unused.py", "x = 1\n")
    house.write("ddp_src/launch.py", "spawn = 1\n")
    assert house("check") == found()


def test_missing_output(house):
    _edit_outputs(house, "picture", lambda cell: cell.update(outputs=[], execution_count=None))
    assert house("check") == found(*in_both(EMPTY, " picture"))


def test_unexpected_error(house):
    error = nbformat.v4.new_output("error", ename="ValueError", evalue="no", traceback=["ValueError: no"])
    _edit_outputs(house, "number", lambda cell: cell.outputs.append(error))
    assert house("check") == found(
        *in_both(
            "its output is an error; mend the cell, or mean it: `with shows(ValueError):`. "
            "它的输出是报错；请改好单元格，有意展示时请写 `with shows(ValueError):`。",
            " number",
        )
    )


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_picture_without_alt_text(house, lang):
    house.write("notebooks/src/00_tiny.py", _without(house, f'alt="picture" lang="{lang}"'))
    house("build")
    marker = f'`# %% [markdown] id="picture-alt" alt="picture" lang="{lang}"`'
    assert house("check")[1][1:-1] == [
        f"00_tiny {lang} picture: its picture has no alt text; write one in a cell {marker}. "
        f"它的图片没有替代文字；请写在单元格 {marker} 里。"
    ]
    (picture,) = house.notebook(lang)["picture"].outputs
    assert picture.metadata == {}


def test_picture_in_prose_without_alt_text(house):
    house.write("picture.png", "")
    house.source("# Three quarters", "# ![](../../picture.png) Three quarters")
    house("ack", "00", "title")
    house("build")
    assert house("check") == found(
        "00_tiny en title: the picture ../../picture.png has no alt text; "
        "write ![what it shows](../../picture.png). "
        "图片 ../../picture.png 没有替代文字；请写成 ![图中内容](../../picture.png)。"
    )


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("[x](gone.md)", "gone.md"),
        ("[x](../../gone.md#part)", "../../gone.md#part"),
        ("![x](gone.png)", "gone.png"),
        ('<a href="gone.md">x</a>', "gone.md"),
        ('<img alt="x" src="gone.png">', "gone.png"),
        ("[x](/README.md)", "/README.md"),
        ("[x](../../..)", "../../.."),
        ("[x][y]\n#\n# [y]: gone.md\n#\n#", "gone.md"),
        ("\n#\n# | a |\n# |---|\n# | [x](gone.md) |\n#\n#", "gone.md"),
    ],
)
def test_dead_link(house, link, target):
    house.source("# Three quarters", f"# {link} Three quarters")
    house("ack", "00", "title")
    house("build")
    assert house("check") == found(f"00_tiny en title: {DEAD.format(target)}")


@pytest.mark.parametrize(
    "link",
    [
        "[x](https://example.org/gone)",
        "[x](mailto:a@example.org)",
        "[x](#part)",
        "[x](../../README.md#part)",
        "[x](../../a%20b.md)",
        "`[x](gone.md)`",
        "[中文](../zh/00_tiny.ipynb)",
    ],
)
def test_good_link(house, link):
    house.write("a b.md", "")
    house.source("# Three quarters", f"# {link} Three quarters")
    house("ack", "00", "title")
    house("build")
    assert house("check") == found()


def test_link_into_the_other_language(house):
    house.source("README.zh.md", "README.md")
    house("ack", "00", "title")
    house("build")
    assert house("check") == found(
        "00_tiny zh title: the link ../../README.md changes the language; link README.zh.md in this one, "
        'or let its text say "English". '
        "链接 ../../README.md 换了语言；请改为本语言的 README.zh.md，或让文字写明“English”。"
    )


def test_readme_links(house):
    house.write("README.md", "[x](gone.md) and [chapter](notebooks/zh/00_tiny.ipynb)\n")
    assert house("check") == found(
        f"README.md: {DEAD.format('gone.md')}",
        "README.md: the link notebooks/zh/00_tiny.ipynb changes the language; link 00_tiny.ipynb in this "
        'one, or let its text say "中文". '
        "链接 notebooks/zh/00_tiny.ipynb 换了语言；请改为本语言的 00_tiny.ipynb，或让文字写明“中文”。",
    )


def test_notebook_without_source(house):
    house.write("notebooks/zh/01_old.ipynb", house.path("zh").read_text(encoding="utf-8"))
    assert house("check") == found(
        "01_old zh: there is no notebooks/src/01_old.py; delete the notebook or restore its source. "
        "没有 notebooks/src/01_old.py；请删掉这个 notebook，或者恢复源文件。"
    )


def test_unshown_decimal_is_listed_and_does_not_fail(house):
    house.source(
        "# Three quarters are 0.75", "# 0.75 is shown, 12.5 and 1.75 are not.\n# Three quarters are 0.75"
    )
    house.source("四分之三是", "3.5（[出处](https://example.org)），")
    house("ack", "00", "title")
    house("build")
    assert house("check") == found(_unshown("en", "12.5"), _unshown("en", "1.75"), mend=0)


def test_broken_source_is_a_finding(house):
    house.source('# %% id="number"', "# %%")
    assert house("check") == found(
        "00_tiny: notebooks/src/00_tiny.py:12: the id None cannot be used; "
        'write letters, digits, "-", "_", as in id="why-shard". '
        'notebooks/src/00_tiny.py:12：id None 不能用；请用字母、数字、“-” 和 “_”，例如 id="why-shard"。'
    )


def _unshown(lang: str, number: str) -> str:
    return (
        f"00_tiny {lang} title: note: {number} stands in no output and has no link on its line. "
        f"提示：{number} 不在任何输出里，所在行也没有出处链接。"
    )


def _without(house, attributes: str) -> str:
    """The chapter's source without the cell that has these attributes."""
    text = (house.root / "notebooks/src/00_tiny.py").read_text(encoding="utf-8")
    cells = [f"# %%{part}" for part in text.split("# %%")[1:]]
    kept = [cell for cell in cells if attributes not in cell]
    assert len(kept) == len(cells) - 1
    return "".join(kept)


def _edit_outputs(house, cell_id: str, edit) -> None:
    """Change a stored code cell in both editions."""
    for lang in ("en", "zh"):
        notebook = nbformat.read(house.path(lang), as_version=4)
        edit(next(cell for cell in notebook.cells if cell.id == cell_id))
        nbformat.write(notebook, house.path(lang))
