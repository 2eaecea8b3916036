"""Read a chapter's source, a jupytext percent file, and refuse what breaks its rules, with file and line."""

import ast
import re
from pathlib import Path
from typing import NoReturn

import jupytext

from ddp_src.errors import UserError

from .chapter import Chapter, Code, Paragraph

_ALLOWED = {"en": {"id", "lang", "alt"}, "zh": {"id", "lang", "alt", "sync"}, "code": {"id"}}
_JUPYTEXT_OWN = {"lines_to_next_cell", "cell_marker"}
# Left on, this makes jupytext read the comment "# copy the weights" as a shell command and uncomment it.
_FORMAT = {"extension": ".py", "format_name": "percent", "comment_magics": False}
# `# !torchrun ...` in the source is `!torchrun ...` in the notebook, so that the source is plain Python.
_MAGIC = re.compile(r"^# (?=[!%]\w)", re.M)


class SourceError(UserError):
    """A chapter's source breaks a rule of the format."""


def read_chapter(path: Path) -> Chapter:
    """Parse one source file; raises SourceError."""
    return _Reader(path).read()


class _Reader:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.line = 1
        self.cells: list[Paragraph | Code] = []

    def refuse(self, en: str, zh: str) -> NoReturn:
        place = f"notebooks/src/{self.path.name}:{self.line}"
        raise SourceError(f"{place}: {en}", f"{place}：{zh}")

    def read(self) -> Chapter:
        if not re.fullmatch(r"\d\d_[a-z0-9_]+", self.path.stem):
            self.refuse(
                "a chapter's file is named like 05_ddp_from_scratch.py; rename it.",
                "章节文件名要像 05_ddp_from_scratch.py 这样；请改名。",
            )
        text = self.path.read_text(encoding="utf-8")
        raw = jupytext.reads(text, fmt=_FORMAT).cells
        lines = [n for n, line in enumerate(text.splitlines(), 1) if line.startswith("# %%")]
        if len(raw) != len(lines):
            self.refuse(
                "each cell, the first too, starts with its own `# %%` line, and nothing else starts a line "
                f"with `# %%`, not even in a string; there are {len(lines)} such lines and {len(raw)} cells.",
                "每个单元格（第一个也是）以自己的 `# %%` 行开头，别处（包括字符串里）不能有这样开头的行；"
                f"现有 {len(lines)} 行，却有 {len(raw)} 个单元格。",
            )
        for cell, self.line in zip(raw, lines, strict=True):
            self.add(cell)
        self.check_title()
        self.check_alts()
        return Chapter(self.path, tuple(self.cells))

    def add(self, cell) -> None:
        attributes = {k: v for k, v in cell.metadata.items() if k not in _JUPYTEXT_OWN}
        cell_id = self.check_attributes(cell.cell_type, attributes)
        text = cell.source.strip("\n")
        earlier = next((c for c in self.cells if c.id == cell_id), None)
        if earlier and not self.is_twin(earlier, attributes):
            self.refuse(
                f'id "{cell_id}" is used twice; ids are unique, and a Chinese paragraph stands after its '
                "English one, with the same alt.",
                f"id “{cell_id}” 用了两次；id 不能重复，中文段落要紧跟在它的英文段落之后，alt 也要相同。",
            )
        if cell.cell_type == "code":
            self.cells.append(Code(cell_id, _MAGIC.sub("", text), self.line))
            self.check_code(self.cells[-1])
            return
        texts, lines = (earlier.texts, earlier.lines) if earlier else ({}, {})
        lang = attributes["lang"]
        paragraph = Paragraph(
            cell_id,
            texts | {lang: text},
            lines | {lang: self.line},
            attributes.get("alt"),
            attributes.get("sync"),
        )
        self.cells[-1:] = [paragraph] if earlier else [*self.cells[-1:], paragraph]

    def is_twin(self, earlier: Paragraph | Code, attributes: dict) -> bool:
        return (
            earlier is self.cells[-1]
            and isinstance(earlier, Paragraph)
            and list(earlier.texts) == ["en"]
            and attributes.get("lang") == "zh"
            and attributes.get("alt") == earlier.alt
        )

    def check_attributes(self, cell_type: str, attributes: dict) -> str:
        """Return the cell's id."""
        kind = "code" if cell_type == "code" else str(attributes.get("lang", ""))
        unknown = sorted(set(attributes) - _ALLOWED.get(kind, _ALLOWED["zh"]))
        if unknown:
            value = attributes[unknown[0]]
            self.refuse(
                f"cannot use the attribute {unknown[0]}={value!r} here; write them as in "
                '`# %% [markdown] id="why-shard" lang="en"` or `# %% id="run-two-ranks"`.',
                f"这里不能用属性 {unknown[0]}={value!r}；请写成 "
                '`# %% [markdown] id="why-shard" lang="zh"` 或 `# %% id="run-two-ranks"`。',
            )
        if cell_type not in ("code", "markdown") or kind not in _ALLOWED:
            self.refuse(
                f'the cell has no language ({kind!r}); write lang="en" or lang="zh" after [markdown].',
                f'单元格没有写明语言（{kind!r}）；请在 [markdown] 后写 lang="en" 或 lang="zh"。',
            )
        cell_id = attributes.get("id")
        if not isinstance(cell_id, str) or not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", cell_id):
            self.refuse(
                f'the id {cell_id!r} cannot be used; write letters, digits, "-", "_", as in id="why-shard".',
                f'id {cell_id!r} 不能用；请用字母、数字、“-” 和 “_”，例如 id="why-shard"。',
            )
        return cell_id

    def check_code(self, code: Code) -> None:
        try:
            empty = not ast.parse(code.python).body
        except SyntaxError as error:
            self.line += error.lineno or 0
            self.refuse(
                f'code cell "{code.id}" is not Python ({error.msg}); mend it.',
                f"代码单元格 “{code.id}” 不是正确的 Python（{error.msg}）；请改好。",
            )
        if empty:
            self.refuse(
                f'code cell "{code.id}" does nothing; write a statement in it or delete it.',
                f"代码单元格 “{code.id}” 什么也没做；请写上语句，或者删掉它。",
            )

    def check_title(self) -> None:
        first = self.cells[0] if self.cells else None
        self.line = 1
        if not isinstance(first, Paragraph) or not all(t.startswith("# ") for t in first.texts.values()):
            self.refuse(
                "the first cell is the title: markdown that starts with a single `#`, in each language.",
                "第一个单元格是标题：以单个 `#` 开头的 markdown，每种语言都要有。",
            )

    def check_alts(self) -> None:
        free = {cell.id for cell in self.cells if isinstance(cell, Code)}
        for cell in self.cells:
            if isinstance(cell, Paragraph) and cell.alt:
                if cell.alt not in free:
                    self.line = min(cell.lines.values())
                    self.refuse(
                        f'alt="{cell.alt}" must be the id of a code cell that has no other alt text.',
                        f"alt=“{cell.alt}” 必须是一个代码单元格的 id，且它还没有别的替代文字。",
                    )
                free.remove(cell.alt)
