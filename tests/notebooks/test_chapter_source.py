"""What a source may hold, and the sentence for each thing that it may not."""

from pathlib import Path

import pytest
from machine.source import SourceError, read_chapter
from machine.stale import modules_used

USED_TWICE = (
    "is used twice; ids are unique, and a Chinese paragraph stands after its English one, with the same alt."
)
UNUSABLE = 'cannot be used; write letters, digits, "-", "_", as in id="why-shard".'
NO_LANGUAGE = 'write lang="en" or lang="zh" after [markdown].'
AS_IN = 'here; write them as in `# %% [markdown] id="why-shard" lang="en"` or `# %% id="run-two-ranks"`.'
MARKERS = (
    "each cell, the first too, starts with its own `# %%` line, and nothing else starts a line with `# %%`, "
    "not even in a string"
)
TITLE = '# %% [markdown] id="title" lang="en"\n# # Title\n'


def read(folder: Path, text: str):
    path = folder / "05_some_slug.py"
    path.write_text(text, encoding="utf-8")
    return read_chapter(path)


def test_a_chapter_is_paragraphs_in_two_languages_and_code(tmp_path):
    chapter = read(
        tmp_path,
        TITLE + '# %% [markdown] id="title" lang="zh" sync="a:b"\n# # 标题\n\n'
        '# %% id="one"\n# copy the weights\n# !echo hi\nx = 1\n\n',
    )
    assert (chapter.number, chapter.slug) == ("05", "some_slug")
    title, code = chapter.cells
    assert (title.texts, title.lines, title.sync) == (
        {"en": "# Title", "zh": "# 标题"},
        {"en": 1, "zh": 3},
        "a:b",
    )
    assert (code.id, code.text, code.line) == ("one", "# copy the weights\n!echo hi\nx = 1", 6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# %%\nx = 1", f"3: the id None {UNUSABLE}"),
        ('# %% id="a b"\nx = 1', f"3: the id 'a b' {UNUSABLE}"),
        ('# %% [markdown] id="a"\n# text', f"3: the cell has no language (''); {NO_LANGUAGE}"),
        ('# %% [markdown] id="a" lang="fr"\n# t', f"3: the cell has no language ('fr'); {NO_LANGUAGE}"),
        ('# %% id="a" tags=["x"]\nx = 1', f"3: cannot use the attribute tags=['x'] {AS_IN}"),
        ('# %% id="a" lang="en"\nx = 1', f"3: cannot use the attribute lang='en' {AS_IN}"),
        (
            '# %% [markdown] id="a\n# text',
            f"3: cannot use the attribute incorrectly_encoded_metadata='id=\"a' {AS_IN}",
        ),
        ('# %% id="a"\nx = 1\n# %% id="a"\nx = 2', f'5: id "a" {USED_TWICE}'),
        (
            '# %% id="a"\nx = 1\n# %% [markdown] id="title" lang="zh"\n# # 标题',
            f'5: id "title" {USED_TWICE}',
        ),
        (
            '# %% id="a"\nx = 1\n# %% [markdown] id="b" alt="a" lang="en"\n# t\n'
            '# %% [markdown] id="b" lang="zh"\n# 文',
            f'7: id "b" {USED_TWICE}',
        ),
        (
            '# %% [markdown] id="b" alt="gone" lang="en"\n# t',
            '3: alt="gone" must be the id of a code cell that has no other alt text.',
        ),
        ('# %% id="a"\nx = 1\nx = = 2', '5: code cell "a" is not Python (invalid syntax); mend it.'),
        (
            '# %% id="a"\n# why',
            '3: code cell "a" does nothing; write a statement in it or delete it.',
        ),
        (
            '# %% id="a"\nx = """\n# %% b\n"""',
            f"1: {MARKERS}; there are 3 such lines and 2 cells.",
        ),
    ],
)
def test_a_broken_rule_is_one_sentence_with_file_and_line(tmp_path, text, message):
    with pytest.raises(SourceError) as caught:
        read(tmp_path, TITLE + text)
    assert caught.value.en == f"notebooks/src/05_some_slug.py:{message}"
    assert caught.value.zh.startswith(f"notebooks/src/05_some_slug.py:{message.partition(':')[0]}：")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the first cell is the title: markdown that starts with a single `#`, in each language."),
        (
            '# %% id="a"\nx = 1',
            "the first cell is the title: markdown that starts with a single `#`, in each language.",
        ),
        (
            f"x = 1\n{TITLE}",
            f"{MARKERS}; there are 1 such lines and 2 cells.",
        ),
    ],
)
def test_a_title_comes_first(tmp_path, text, message):
    with pytest.raises(SourceError) as caught:
        read(tmp_path, text)
    assert caught.value.en == f"notebooks/src/05_some_slug.py:1: {message}"


def test_a_file_name_says_number_and_slug(tmp_path):
    (tmp_path / "five.py").write_text(TITLE)
    with pytest.raises(SourceError, match=r"named like 05_ddp_from_scratch\.py"):
        read_chapter(tmp_path / "five.py")


@pytest.mark.parametrize(
    ("code", "used"),
    [
        ("import ddp_src.plain", {"plain"}),
        ("import ddp_src.plain as p", {"plain"}),
        ("from ddp_src import plain", {"plain"}),
        ("from ddp_src.plain import anything", {"plain"}),
        ("def f():\n    from ddp_src import plain", {"plain"}),
        ("from ddp_src import spawn", {"launch", "plain"}),
        ("from ddp_src import *", {"launch", "plain", "notebook"}),
        ("import ddp_src as d\nd.spawn", {"launch", "plain"}),
        ("import ddp_src\nddp_src.shows", {"notebook"}),
        ("import ddp_src.group.inner", {"group", "group.inner", "plain"}),
        ("from ddp_src import group", {"group"}),
        ("from ddp_src.strings import x", {"strings", "plain"}),
        ('import subprocess\nsubprocess.run(["python", "-m", "ddp_src.plain"])', {"plain"}),
        ("!python -m ddp_src.plain --help", {"plain"}),
        ("!torchrun ../../ddp_src/plain.py", {"plain"}),
        ("import torch", set()),
    ],
)
def test_what_the_outputs_depend_on(tmp_path, code, used):
    files = {
        "__init__.py": '_WHERE = {"spawn": "launch", "shows": "notebook"}\n',
        "plain.py": "import math\n",
        "launch.py": "def spawn():\n    from .plain import x\n",
        "notebook.py": "",
        "strings.py": 'MODULE = "ddp_src.plain"\n',
        "other.py": "",
        "group/__init__.py": "",
        "group/inner.py": "from .. import plain\n",
        "lessons/__init__.py": "",
        "lessons/some_slug.py": "",
        "lessons/other_slug.py": "",
    }
    for name, text in files.items():
        (tmp_path / "ddp_src" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "ddp_src" / name).write_text(text)
    chapter = read(tmp_path, TITLE + f'# %% id="a"\n{code}\n')
    always = {"ddp_src", "ddp_src.lessons", "ddp_src.lessons.some_slug"}
    assert set(modules_used(chapter, tmp_path)) == always | {f"ddp_src.{name}" for name in used}
