"""The pictures that the READMEs show, taken out of a chapter's outputs: they are what a reader gets."""

import base64
import re
from collections.abc import Iterator
from pathlib import Path

from nbformat import NotebookNode

from ddp_src.files import whole_file

from .chapter import Chapter

_NAMED = re.compile(r"\]\(notebooks/figures/(\d\d_[a-z0-9_]+)-([\w-]+)\.png\)")


def wanted(root: Path, stem: str) -> dict[str, Path]:
    """Cell id → file of each picture of chapter `stem` that a README in `root` shows."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(root.glob("README*.md"))]
    found = [match.groups() for text in texts for match in _NAMED.finditer(text)]
    return {cell: root / "notebooks" / "figures" / f"{stem}-{cell}.png" for s, cell in found if s == stem}


def write_figures(chapter: Chapter, root: Path, notebook: NotebookNode) -> None:
    """Bring the wanted pictures up to date with the outputs of `notebook`."""
    for path, png in _pairs(chapter, root, notebook):
        if png and not (path.exists() and path.read_bytes() == png):
            path.parent.mkdir(exist_ok=True)
            with whole_file(path) as file:
                file.write(png)


def outdated(chapter: Chapter, root: Path, notebook: NotebookNode) -> list[Path]:
    """The wanted pictures that are missing or are not the cell's output."""
    return [p for p, png in _pairs(chapter, root, notebook) if not p.exists() or p.read_bytes() != png]


def _pairs(chapter: Chapter, root: Path, notebook: NotebookNode) -> Iterator[tuple[Path, bytes | None]]:
    outputs = {cell.get("id"): cell.get("outputs", []) for cell in notebook.cells}
    for cell_id, path in wanted(root, chapter.stem).items():
        pngs = [o.data["image/png"] for o in outputs.get(cell_id, []) if "image/png" in o.get("data", {})]
        yield path, base64.b64decode(pngs[0]) if pngs else None
