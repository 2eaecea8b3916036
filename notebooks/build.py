"""Build, run and check the bilingual notebooks.

build [NN ...]            write both editions; a cell whose code is the same keeps its outputs
run [NN ...]              the same, after running each chapter whose outputs are stale
check [--draft] [NN ...]  list what keeps a chapter from being published
ack NN ID [ID ...]        show paragraphs in both languages and stamp them as compared

A chapter's source, notebooks/src/NN_slug.py, is made of these cells:

# %% [markdown] id="why-shard" lang="en"              a paragraph, and right after it
# %% [markdown] id="why-shard" lang="zh" sync="..."   its translation; `ack` writes the sync
# %% id="two-ranks"                                   code, the same in both editions
# %% [markdown] id="two-ranks-alt" alt="two-ranks" lang="en"   what that cell's picture shows, in words

Exit status: 0 all is well; 1 something was found, or a cell failed; 2 wrong words or an unreadable source.
"""

import argparse
import sys
from pathlib import Path

from machine import ack
from machine.build import build, load, notebook_path
from machine.chapter import Chapter
from machine.check import Finding, check_chapter, check_house
from machine.execute import RunFailed, execute
from machine.source import SourceError, read_chapter
from machine.stale import is_stale

from ddp_src.errors import ConfigError, UserError

ROOT = Path(__file__).resolve().parents[1]


def main(words: list[str], root: Path = ROOT) -> int:
    """Run one command on the tree at `root`; returns the exit status."""
    options = _parser().parse_args(words)
    try:
        paths = _sources(root, options.chapters)
        if options.command == "ack":
            return _ack(read_chapter(paths[0]), options.ids)
        if options.command == "check":
            return _check(paths, root, draft=options.draft, whole=not options.chapters)
        return max((_make(path, root, run=options.command == "run") for path in paths), default=0)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="build.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="build | run | check | ack")
    for name in ("build", "run", "check"):
        command = commands.add_parser(name)
        command.add_argument("chapters", nargs="*", metavar="NN", help="chapter numbers; all when left out")
        if name == "check":
            command.add_argument("--draft", action="store_true", help="translations may be stale or missing")
    command = commands.add_parser("ack")
    command.add_argument("chapters", nargs=1, metavar="NN")
    command.add_argument("ids", nargs="+", metavar="ID")
    return parser


def _sources(root: Path, numbers: list[str]) -> list[Path]:
    paths = sorted((root / "notebooks" / "src").glob("*.py"))
    for number in numbers:
        if not any(path.name.startswith(f"{number}_") for path in paths):
            known = ", ".join(path.stem for path in paths) or "none"
            raise ConfigError(
                f'there is no chapter "{number}"; write two digits, the chapters are: {known}.',
                f"没有章节 “{number}”；请写两位数字，现有章节：{known}。",
            )
    return [p for p in paths if not numbers or any(p.name.startswith(f"{n}_") for n in numbers)]


def _make(path: Path, root: Path, *, run: bool) -> int:
    """Build one chapter, after running it where asked and needed; a failure leaves it as it was."""
    try:
        chapter = read_chapter(path)
        stored = load(notebook_path(root, "en", chapter.stem))
        stale = run and is_stale(chapter, root, stored)
        if stale:
            stored = execute(chapter, root)
        build(chapter, root, stored)
    except (SourceError, RunFailed) as error:
        print(error, file=sys.stderr)
        return 1 if isinstance(error, RunFailed) else 2
    print(f"{path.stem}: {'ran and built' if stale else 'built'}")
    return 0


def _check(paths: list[Path], root: Path, *, draft: bool, whole: bool) -> int:
    findings: list[Finding] = []
    for path in paths:
        try:
            findings += check_chapter(read_chapter(path), root)
        except SourceError as error:
            findings.append(Finding(path.stem, error.en, error.zh))
    if whole:
        findings += check_house(root, {path.stem for path in paths})
    failing = {"fails"} if draft else {"fails", "draft"}
    print(*findings, sep="\n", end="\n" if findings else "")
    count = sum(finding.weight in failing for finding in findings)
    print(f"chapters: {len(paths)}, to mend: {count}")
    return 1 if count else 0


def _ack(chapter: Chapter, ids: list[str]) -> int:
    paragraphs = ack.find(chapter, ids)
    for paragraph in paragraphs:
        print(ack.side_by_side(paragraph), end="\n\n")
    ack.stamp(chapter, paragraphs)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
