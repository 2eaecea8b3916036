"""What a chapter is once its source has been read: paragraphs in two languages, and code cells."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from IPython.core.inputtransformer2 import TransformerManager

LANGS = ("en", "zh")
NAMES = {"en": "English", "zh": "中文"}


@dataclass(frozen=True)
class Paragraph:
    """A markdown cell in its languages; with `alt` it describes the picture of that code cell."""

    id: str
    texts: dict[str, str]
    lines: dict[str, int]
    alt: str | None = None
    sync: str | None = None

    @property
    def stamp(self) -> str:
        """The `sync` that fits the texts as they are now."""
        return ":".join(digest(self.texts.get(lang, "")) for lang in LANGS)


@dataclass(frozen=True)
class Code:
    """A code cell, the same in both languages; `line` is where its `# %%` stands."""

    id: str
    text: str
    line: int

    @property
    def python(self) -> str:
        """The code as the kernel runs it, `!` and `%` lines as calls."""
        return TransformerManager().transform_cell(self.text)


@dataclass(frozen=True)
class Chapter:
    """One source file: stem "00_quickstart", number "00", slug "quickstart"."""

    path: Path
    cells: tuple[Paragraph | Code, ...]

    @property
    def stem(self) -> str:
        return self.path.stem

    @property
    def number(self) -> str:
        return self.stem[:2]

    @property
    def slug(self) -> str:
        return self.stem[3:]

    @property
    def paragraphs(self) -> list[Paragraph]:
        return [cell for cell in self.cells if isinstance(cell, Paragraph)]

    @property
    def code(self) -> list[Code]:
        return [cell for cell in self.cells if isinstance(cell, Code)]

    @property
    def alts(self) -> dict[str, Paragraph]:
        """Code cell id -> the paragraph that describes its picture."""
        return {p.alt: p for p in self.paragraphs if p.alt}


def digest(text: str) -> str:
    """Eight hex digits that change when the text does."""
    return hashlib.sha256(text.strip().encode()).hexdigest()[:8]
