"""What a chapter's outputs were made from: its code cells, its lesson, and the modules that these import."""

import ast
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from nbformat import NotebookNode

from .chapter import Chapter

_PACKAGE = "ddp_src"
_MENTIONED = re.compile(rf"\b{_PACKAGE}(?:[./]\w+)+")


def ran_hash(chapter: Chapter, root: Path) -> str:
    """Changes when a code cell changes, or a module that the chapter uses directly or through others."""
    made_from = hashlib.sha256()
    for cell in chapter.code:
        made_from.update(f"cell\0{cell.text}\0".encode())
    for name, path in sorted(modules_used(chapter, root).items()):
        made_from.update(f"{name}\0{path.read_text(encoding='utf-8')}\0".encode())
    return made_from.hexdigest()[:16]


def is_stale(chapter: Chapter, root: Path, stored: NotebookNode | None) -> bool:
    """True when there are no outputs, or they were made from something else."""
    if stored is None or stored.metadata.get("ddp", {}).get("ran") != ran_hash(chapter, root):
        return True
    old = {cell.get("id"): cell for cell in stored.cells if cell.cell_type == "code"}
    return any(
        cell.id not in old
        or old[cell.id].source != cell.text
        or old[cell.id].execution_count is None
        or any(output.output_type == "error" for output in old[cell.id].outputs)
        for cell in chapter.code
    )


def modules_used(chapter: Chapter, root: Path) -> dict[str, Path]:
    """Dotted name -> file of each module of the package that the chapter uses, found without running it."""
    lazy = _lazy_names(root)
    waiting = {f"{_PACKAGE}.lessons.{chapter.slug}"}
    for cell in chapter.code:
        # Also what a cell starts by name, as in [sys.executable, "-m", "ddp_src.train"].
        waiting |= {m.replace("/", ".").removesuffix(".py") for m in _MENTIONED.findall(cell.text)}
        waiting |= set(_imported(ast.parse(cell.python), "", lazy))
    found: dict[str, Path] = {}
    while waiting:
        name = waiting.pop()
        path = _file_of(name, root)
        if path is None or name in found:
            continue
        found[name] = path
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        waiting.add(name.rpartition(".")[0])
        waiting |= set(_imported(ast.parse(path.read_text(encoding="utf-8")), package, lazy))
    return found


def _imported(tree: ast.AST, package: str, lazy: dict[str, str]) -> Iterator[str]:
    """Names that may be modules: imported anywhere in the code, or a string that is only such a name."""
    aliases = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
                if alias.name.partition(".")[0] == _PACKAGE:
                    aliases.add(alias.asname or _PACKAGE)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*parents, *([node.module] if node.module else [])])
            yield source
            for alias in node.names:
                yield f"{source}.{alias.name}"
                if source == _PACKAGE:
                    yield from lazy.values() if alias.name == "*" else [lazy.get(alias.name, "")]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value if _MENTIONED.fullmatch(node.value) else ""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in aliases:
            yield lazy.get(node.attr, "")


def _lazy_names(root: Path) -> dict[str, str]:
    """What the package offers at its top, by the table in its __init__: name -> dotted module."""
    init = root / _PACKAGE / "__init__.py"
    for node in ast.parse(init.read_text(encoding="utf-8")).body if init.exists() else []:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_WHERE":
            return {name: f"{_PACKAGE}.{where}" for name, where in ast.literal_eval(node.value).items()}
    return {}


def _file_of(name: str, root: Path) -> Path | None:
    if name.partition(".")[0] != _PACKAGE:
        return None
    path = root.joinpath(*name.split("."))
    return next((p for p in (path.with_suffix(".py"), path / "__init__.py") if p.is_file()), None)
