"""Build the two notebooks of a chapter, byte for byte the same each time, keeping stored outputs."""

from pathlib import Path

import nbformat
from nbformat import NotebookNode, v4

from ddp_src.files import whole_file

from .chapter import LANGS, Chapter, Code
from .figures import write_figures
from .prose import alt_text, markdown
from .source import SourceError


def notebook_path(root: Path, lang: str, stem: str) -> Path:
    return root / "notebooks" / lang / f"{stem}.ipynb"


def load(path: Path) -> NotebookNode | None:
    """The notebook at `path`, or None when there is none; raises SourceError when it cannot be read."""
    if not path.exists():
        return None
    try:
        return nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)
    except (ValueError, AttributeError, nbformat.ValidationError) as error:
        place = f"notebooks/{path.parent.name}/{path.name}"
        raise SourceError(
            f"{place}: this is not a notebook, perhaps after a merge; delete it and run `build.py run`.",
            f"{place}：这不是一个 notebook（也许是合并留下的）；删掉它，再运行 `build.py run`。",
        ) from error


def build(chapter: Chapter, root: Path, stored: NotebookNode | None) -> None:
    """Write both editions with the outputs of `stored`, and the pictures that the READMEs take from them."""
    for lang in LANGS:
        _write(notebook_path(root, lang, chapter.stem), render(chapter, lang, stored))
    if stored:
        write_figures(chapter, root, stored)


def render(chapter: Chapter, lang: str, stored: NotebookNode | None) -> str:
    """The text of one edition; a code cell has outputs where `stored` has them for the same id and code."""
    old = {cell.get("id"): cell for cell in stored.cells if cell.cell_type == "code"} if stored else {}
    cells, count = [], 0
    for cell in chapter.cells:
        if isinstance(cell, Code):
            count += 1
            cells.append(_code_cell(cell, old.get(cell.id), count, chapter, lang))
        else:
            cells.append(v4.new_markdown_cell(markdown(cell, lang), id=cell.id))
    title = markdown(chapter.paragraphs[0], lang).splitlines()[0].removeprefix("# ")
    metadata = {
        "ddp": {"lang": lang, "ran": stored.metadata.get("ddp", {}).get("ran") if stored else None},
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "title": title,
    }
    return nbformat.writes(v4.new_notebook(cells=cells, metadata=metadata)) + "\n"


def _code_cell(cell: Code, old: NotebookNode | None, count: int, chapter: Chapter, lang: str) -> NotebookNode:
    new = v4.new_code_cell(cell.text, id=cell.id)
    if old is None or old.source != cell.text or old.execution_count is None:
        return new
    new.execution_count = count
    described = chapter.alts.get(cell.id)
    alt = alt_text(described, lang) if described else ""
    for output in nbformat.from_dict(old.outputs):
        if output.output_type == "execute_result":
            output.execution_count = count
        for kind in pictures(output):
            output.metadata.pop(kind, None)
            if alt:
                output.metadata[kind] = {"alt": alt}
        new.outputs.append(output)
    return new


def pictures(output: NotebookNode) -> list[str]:
    """The picture types that an output holds."""
    return [kind for kind in output.get("data", {}) if kind.startswith("image/")]


def _write(path: Path, text: str) -> None:
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file:
        file.write(text.encode())
