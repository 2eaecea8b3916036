"""From a paragraph's source text to the markdown that stands in one edition."""

import re

from .chapter import Paragraph

_WIDE = r"[\u2e80-\u9fff\uf900-\ufaff]"
_MARK = r"[\u2014\u2018-\u201d\u2026\u3001-\u3011\uff00-\uffef]"
# A line break is shown as a space, which Chinese does not have beside its characters and marks.
_BREAK = re.compile(
    rf"({_WIDE}\*{{0,2}})\n *(?=\*{{0,2}}{_WIDE})"
    rf"|({_MARK}\*{{0,2}})\n *(?=\*{{0,2}}[\w`\[(])(?!\d+[.)])"
    rf"|([^\s\\])\n *(?={_MARK})"
)
_FENCE = re.compile(r"(^(?:```|~~~).*?^(?:```|~~~)[ \t]*$)", re.M | re.S)
_HEADING_OR_ROW = re.compile(r"(^(?:#|\|).*\n?)", re.M)
_IN_WORDS = {"en": "The figure in words", "zh": "图中内容的文字描述"}


def markdown(paragraph: Paragraph, lang: str) -> str:
    """The cell's markdown in `lang`; where a draft lacks the language, the other one stands in."""
    if not paragraph.texts.get(lang):
        lang = next((other for other, text in paragraph.texts.items() if text), lang)
    text = _flow(paragraph.texts.get(lang, ""), lang)
    if paragraph.alt:
        # JupyterLab 4.6 and nbconvert's Lab template leave out an output's alt: the words stand here too.
        return f"<details><summary>{_IN_WORDS[lang]}</summary>\n\n{text}\n\n</details>"
    return text


def alt_text(paragraph: Paragraph, lang: str) -> str:
    """The alt text in `lang` on one line, empty when there is none."""
    return " ".join(_flow(paragraph.texts.get(lang, ""), lang).split())


def _flow(text: str, lang: str) -> str:
    """Join the lines of each Chinese paragraph; headings, table rows, fenced code and blank lines stay."""
    if lang != "zh":
        return text
    parts = _FENCE.split(text)
    return "".join(part if i % 2 else _join(part) for i, part in enumerate(parts))


def _join(text: str) -> str:
    parts = _HEADING_OR_ROW.split(text)
    return "".join(part if i % 2 else _BREAK.sub(r"\1\2\3", part) for i, part in enumerate(parts))
