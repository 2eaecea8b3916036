"""Everything that keeps a chapter from being published, one finding a line."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nbformat import NotebookNode

from .build import load, notebook_path, pictures, render
from .chapter import LANGS, Chapter, Code, Paragraph
from .decimals import unshown_decimals
from .figures import outdated
from .links import link_problems
from .source import SourceError
from .stale import ran_hash

_READMES = {"en": "README.md", "zh": "README.zh.md"}


@dataclass(frozen=True)
class Finding:
    """`where` is chapter, language and cell id.

    A "draft" finding may wait while one language is being written; a "note" never fails.
    """

    where: str
    en: str
    zh: str
    weight: Literal["fails", "draft", "note"] = "fails"

    def __str__(self) -> str:
        return f"{self.where}: {self.en} {self.zh}"


def check_chapter(chapter: Chapter, root: Path) -> Iterator[Finding]:
    """Findings of one chapter, in both languages."""
    for paragraph in chapter.paragraphs:
        yield from _translation(paragraph, chapter)
    notebooks = {}
    for lang in LANGS:
        try:
            notebooks[lang] = load(notebook_path(root, lang, chapter.stem))
        except SourceError as error:
            yield Finding(f"{chapter.stem} {lang}", error.en, error.zh)
    for path in outdated(chapter, root, notebooks["en"]) if notebooks.get("en") else []:
        yield Finding(
            f"{chapter.stem} {path.name}",
            "a README shows this picture and it is not the cell's output; run `build.py build`.",
            "README 用到的这张图与单元格的输出不同；请运行 `build.py build`。",
        )
    for lang, notebook in notebooks.items():
        where = f"{chapter.stem} {lang}"
        committed = notebook_path(root, lang, chapter.stem)
        fresh = render(chapter, lang, notebooks.get("en"))
        if notebook is None or committed.read_text(encoding="utf-8") != fresh:
            yield Finding(
                where,
                "the notebook is not what its source gives; run `build.py build`.",
                "这个 notebook 与由源文件构建的结果不同；请运行 `build.py build`。",
            )
        yield from _outputs(chapter, lang, notebook, root)
        for paragraph in chapter.paragraphs:
            text = paragraph.texts.get(lang, "")
            for en, zh in link_problems(text, folder=committed.parent, lang=lang, root=root):
                yield Finding(f"{where} {paragraph.id}", en, zh)
        for cell_id, number in unshown_decimals(chapter, lang, notebook) if notebook else []:
            yield Finding(
                f"{where} {cell_id}",
                f"note: {number} stands in no output and has no link on its line.",
                f"提示：{number} 不在任何输出里，所在行也没有出处链接。",
                "note",
            )


def _translation(paragraph: Paragraph, chapter: Chapter) -> Iterator[Finding]:
    missing = [lang for lang in LANGS if not paragraph.texts.get(lang)]
    for lang in missing:
        yield Finding(
            f"{chapter.stem} {lang} {paragraph.id}",
            "this paragraph is missing in this language; write it.",
            "这一段缺少这种语言的文字；请补上。",
            "draft",
        )
    if missing or paragraph.sync == paragraph.stamp:
        return
    order = f"`build.py ack {chapter.number} {paragraph.id}`"
    en, zh = _what_changed(paragraph)
    yield Finding(
        f"{chapter.stem} zh {paragraph.id}",
        f"{en}; compare the two texts, then run {order}.",
        f"{zh}；请核对两种文字，再运行 {order}。",
        "draft",
    )


def _what_changed(paragraph: Paragraph) -> tuple[str, str]:
    if paragraph.sync is None:
        return "the translation was never compared with the English text", "译文还没有与英文核对过"
    then, now = paragraph.sync.partition(":"), paragraph.stamp.partition(":")
    if then[0] == now[0]:
        return "the Chinese text changed after it was compared", "上次核对之后，中文改过"
    if then[2] == now[2]:
        return "the English text changed after it was compared", "上次核对之后，英文改过"
    return "both texts changed after they were compared", "上次核对之后，中英文都改过"


def _outputs(chapter: Chapter, lang: str, notebook: NotebookNode | None, root: Path) -> Iterator[Finding]:
    where = f"{chapter.stem} {lang}"
    ran = notebook.metadata.get("ddp", {}).get("ran") if notebook else None
    order = f"`build.py run {chapter.number}`"
    if ran and ran != ran_hash(chapter, root):
        yield Finding(
            where,
            f"its code, or a module that it imports, changed since the outputs were made; run {order}.",
            f"代码或它导入的模块在输出生成之后改过；请运行 {order}。",
        )
    cells = {cell.get("id"): cell for cell in notebook.cells} if notebook else {}
    for code in chapter.code:
        cell = cells.get(code.id)
        if cell is None or cell.get("execution_count") is None:
            yield Finding(
                f"{where} {code.id}",
                f"the cell has no outputs; run {order}.",
                f"这个单元格没有输出；请运行 {order}。",
            )
            continue
        yield from _content(chapter, lang, code, cell)


def _content(chapter: Chapter, lang: str, code: Code, cell: NotebookNode) -> Iterator[Finding]:
    where = f"{chapter.stem} {lang} {code.id}"
    for output in cell.outputs:
        if output.output_type == "error":
            yield Finding(
                where,
                f"its output is an error; mend the cell, or mean it: `with shows({output.ename}):`.",
                f"它的输出是报错；请改好单元格，有意展示时请写 `with shows({output.ename}):`。",
            )
    described = chapter.alts.get(code.id)
    marker = f'`# %% [markdown] id="{code.id}-alt" alt="{code.id}" lang="{lang}"`'
    if any(pictures(output) for output in cell.outputs) and not (described and described.texts.get(lang)):
        yield Finding(
            where,
            f"its picture has no alt text; write one in a cell {marker}.",
            f"它的图片没有替代文字；请写在单元格 {marker} 里。",
        )


def check_house(root: Path, stems: set[str]) -> Iterator[Finding]:
    """Findings outside chapters: built notebooks without a source, and the READMEs' links."""
    for lang in LANGS:
        for path in sorted((root / "notebooks" / lang).glob("*.ipynb")):
            if path.stem not in stems:
                yield Finding(
                    f"{path.stem} {lang}",
                    f"there is no notebooks/src/{path.stem}.py; delete the notebook or restore its source.",
                    f"没有 notebooks/src/{path.stem}.py；请删掉这个 notebook，或者恢复源文件。",
                )
        readme = root / _READMES[lang]
        text = readme.read_text(encoding="utf-8") if readme.exists() else ""
        for en, zh in link_problems(text, folder=root, lang=lang, root=root):
            yield Finding(readme.name, en, zh)
