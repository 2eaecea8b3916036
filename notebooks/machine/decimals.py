"""Decimal numbers that prose states although no output of the notebook shows them and no source is linked."""

import re

from nbformat import NotebookNode

from .chapter import Chapter

_DECIMAL = re.compile(r"(?<![\w.])\d+\.\d+(?!\.?\d)")
_SOURCE = re.compile(r"\]\(|https?://")


def unshown_decimals(chapter: Chapter, lang: str, notebook: NotebookNode) -> list[tuple[str, str]]:
    """(cell id, number), in reading order."""
    shown = set(_DECIMAL.findall(_output_text(notebook)))
    return [
        (paragraph.id, number)
        for paragraph in chapter.paragraphs
        for line in paragraph.texts.get(lang, "").splitlines()
        if not _SOURCE.search(line)
        for number in _DECIMAL.findall(line)
        if number not in shown
    ]


def _output_text(notebook: NotebookNode) -> str:
    texts = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            texts.append(output.get("text", ""))
            texts += [value for kind, value in output.get("data", {}).items() if kind.startswith("text/")]
    return "\n".join(texts)
