"""Links and pictures in markdown: is the target there and in the reader's language, the picture described?"""

from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from markdown_it import MarkdownIt

from .chapter import NAMES


@dataclass
class Link:
    """`text` is what the reader sees or, of a picture, its alt text."""

    target: str
    text: str
    picture: bool


class _Collector(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[Link] = []
        self.open: Link | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "img":
            self.found.append(Link(given.get("src", ""), given.get("alt", ""), picture=True))
        elif tag == "a" and given.get("href"):
            self.open = Link(given["href"], "", picture=False)
            self.found.append(self.open)

    def handle_endtag(self, tag: str) -> None:
        if tag == "a":
            self.open = None

    def handle_data(self, data: str) -> None:
        if self.open:
            self.open.text += data


def links(markdown: str) -> list[Link]:
    """Every link and picture, written in markdown or in HTML; code is not looked into."""
    collector = _Collector()
    collector.feed(MarkdownIt("commonmark").render(markdown))
    return collector.found


def link_problems(markdown: str, *, folder: Path, lang: str, root: Path) -> Iterator[tuple[str, str]]:
    """What is wrong (English, Chinese) with the links of a text that stands in `folder`, read in `lang`."""
    for link in links(markdown):
        if link.picture and not link.text.strip():
            yield (
                f"the picture {link.target} has no alt text; write ![what it shows]({link.target}).",
                f"图片 {link.target} 没有替代文字；请写成 ![图中内容]({link.target})。",
            )
        url = urlsplit(link.target)
        if url.scheme or url.netloc or not url.path:
            continue
        there = (folder / unquote(url.path)).resolve()
        if not there.is_relative_to(root.resolve()) or not there.exists():
            yield (
                f"the link {link.target} leads nowhere; write a path that starts from this file's folder.",
                f"链接 {link.target} 指向的文件不存在；请写从本文件所在文件夹出发的相对路径。",
            )
            continue
        other = "zh" if lang == "en" else "en"
        twin = _twin(there, lang)
        if twin and twin.exists() and NAMES[other] not in link.text:
            yield (
                f"the link {link.target} changes the language; link {twin.name} in this one, or let its text "
                f'say "{NAMES[other]}".',
                f"链接 {link.target} 换了语言；请改为本语言的 {twin.name}，或让文字写明“{NAMES[other]}”。",
            )


def _twin(path: Path, lang: str) -> Path | None:
    """The same page in `lang`, when `path` is in the other language."""
    if path.suffix == ".ipynb" and path.parent.name == ("en" if lang == "zh" else "zh"):
        return path.parent.parent / lang / path.name
    if path.name.endswith(".zh.md"):
        return path.with_name(path.name.removesuffix(".zh.md") + ".md") if lang == "en" else None
    return path.with_suffix(".zh.md") if path.suffix == ".md" and lang == "zh" else None
