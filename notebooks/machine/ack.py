"""Stamp a translation as compared with its original, after showing the two side by side."""

import re
import textwrap
import unicodedata
from itertools import zip_longest

from ddp_src.errors import ConfigError

from .chapter import Chapter, Paragraph

_COLUMN = 56


def find(chapter: Chapter, ids: list[str]) -> list[Paragraph]:
    """The named paragraphs; raises ConfigError when one is not a paragraph in both languages."""
    known = {p.id: p for p in chapter.paragraphs if len(p.texts) == 2}
    for name in ids:
        if name not in known:
            raise ConfigError(
                f'{chapter.stem} has no "{name}" in both languages; check the id (nothing was stamped).',
                f"{chapter.stem} 里没有两种语言都写好的段落 “{name}”；请核对 id（没有改动任何内容）。",
            )
    return [known[name] for name in dict.fromkeys(ids)]


def side_by_side(paragraph: Paragraph) -> str:
    """Both texts in two columns."""
    left, right = (_wrapped(paragraph.texts[lang]) for lang in ("en", "zh"))
    rows = zip_longest([paragraph.id, "", *left], ["", "", *right], fillvalue="")
    return "\n".join(f"{a}{' ' * (_COLUMN - _width(a))} | {b}".rstrip() for a, b in rows)


def stamp(chapter: Chapter, paragraphs: list[Paragraph]) -> None:
    """Write the fitting `sync` into the Chinese markers of these paragraphs, and change nothing else."""
    text = chapter.path.read_bytes().decode("utf-8")
    lines = text.splitlines(keepends=True)
    for paragraph in paragraphs:
        at = paragraph.lines["zh"] - 1
        marker = re.sub(r'\s+sync="[^"]*"', "", lines[at])
        body = marker.rstrip()
        lines[at] = f'{body} sync="{paragraph.stamp}"{marker[len(body) :]}'
    chapter.path.write_bytes("".join(lines).encode("utf-8"))


def _width(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _wrapped(text: str) -> list[str]:
    """Lines no wider than a column; Chinese may break anywhere."""
    lines = []
    for line in text.splitlines():
        if _width(line) == len(line):
            lines += textwrap.wrap(line, _COLUMN) or [""]
            continue
        row = ""
        for char in line:
            if _width(row + char) > _COLUMN:
                lines.append(row)
                row = ""
            row += char
        lines.append(row)
    return lines
