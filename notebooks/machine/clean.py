"""Take out of outputs what differs from machine to machine or from run to run."""

import base64
import re
import struct
import tempfile
from pathlib import Path

from nbformat import NotebookNode

_ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]{6,}")
_PNG_NOTES = (b"tEXt", b"zTXt", b"iTXt", b"tIME")


def clean(outputs: list[NotebookNode], root: Path) -> list[NotebookNode]:
    """The outputs without paths of this machine, object addresses and notes inside pictures."""
    return [_clean(output, root) for output in outputs]


def _clean(node, root: Path):
    if isinstance(node, str):
        return clean_text(node, root)
    if isinstance(node, list):
        return [_clean(item, root) for item in node]
    if isinstance(node, dict):
        return NotebookNode(
            {
                key: _png(v) if key == "image/png" and isinstance(v, str) else _clean(v, root)
                for key, v in node.items()
            }
        )
    return node


def clean_text(text: str, root: Path) -> str:
    """`/home/me/repo/ddp_src/x.py` becomes `…/ddp_src/x.py`, `/tmp/ab12/log` `…/log`, the home folder `~`."""
    text = _replace(text, root, "…")
    inside = r"(?:[/\\][^/\\\s'\":,;)]+(?=[/\\]))*"
    folders = [
        (Path(tempfile.gettempdir()), "…", inside),
        (Path("/tmp"), "…", inside),
        (Path.home(), "~", ""),
    ]
    for folder, by, below in sorted(folders, key=lambda f: -len(str(f[0]))):  # one may lie in another
        text = _replace(text, folder, by, below)
    return _ADDRESS.sub("at 0x…", text).replace("\r\n", "\n")


def _replace(text: str, folder: Path, by: str, below: str = "") -> str:
    """Replace a folder's path, also the one that links lead to, and what the pattern `below` finds in it."""
    for path in {folder, folder.resolve()}:
        if len(path.parts) > 1:
            text = re.sub(rf"(?<![\w.~-]){re.escape(str(path))}{below}(?![\w.-])", by, text)
    return text


def _png(encoded: str) -> str:
    """The same picture without its text and time chunks, where drawing programs name themselves."""
    data = base64.b64decode(encoded)
    kept, at = data[:8], 8
    while at < len(data):
        end = at + 12 + struct.unpack(">I", data[at : at + 4])[0]
        if data[at + 4 : at + 8] not in _PNG_NOTES:
            kept += data[at:end]
        at = end
    return base64.b64encode(kept).decode()
