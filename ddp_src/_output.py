"""What ranks print: followed in their logs as it grows, shown in whole lines that name the rank."""

from __future__ import annotations

import re
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

LINES_SHOWN = 200  # per rank and launch; the rest stays in the log
LAST_LINES = 5
LINE_WIDTH = 2_000  # characters shown of one line
WARNING_HELD = 1.0  # seconds in which the other ranks may print the same warning
# "file.py:12: UserWarning: text", and torch's own "[W1130 19:20:33.123 reducer.cpp:1432] Warning: text"
_WARNING = re.compile(r"\S.*:\d+: \w*Warning: |(?:\[rank\d+\]:)?\[W\d+ .*?\] ")
_TIME_IN_WARNING = re.compile(r"^(?:\[rank\d+\]:)?\[W\d+ [\d:.]+ ")
# What torch itself prints when a group starts and ends; it stays in the log.
_NOISE = re.compile(r"^\[Gloo\] Rank \d+ is connected|^\[[EW]\d+ .*ProcessGroup|^\[rank\d+\]:\[[EW]")


def say(text: str) -> None:
    """Print; what the terminal cannot show becomes an escape."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)


class Output:
    """Makes the logs of all ranks and follows them; `pump` shows what is new since the last call."""

    def __init__(self, logs: list[Path], *, show: bool) -> None:
        for log in logs:
            log.write_bytes(b"")
        self._tails = [_Tail(rank, path) for rank, path in enumerate(logs)]
        self._show = show
        self._progress = ""
        self._warnings: dict[str, _Warning] = {}

    def pump(self, *, final: bool = False) -> None:
        """Print the new whole lines of every rank; with `final` an unfinished one too."""
        for tail in self._tails:
            for line in tail.read(final=final):
                self._print_or_hold(tail, line)
        self._print_warnings(final=final)
        progress = next(filter(None, (tail.progress for tail in self._tails)), "")
        if self._show and progress:
            self._print_progress(progress)  # of the first rank that has one: the others stay in their logs

    def close(self) -> None:
        """Print what is left: unfinished lines, and the end of what the limit held back."""
        self.pump(final=True)
        for tail in self._tails:
            for line in tail.closing():
                self._print(tail.prefix + line)
        if self._progress:
            print()

    def _print_or_hold(self, tail: _Tail, line: str) -> None:
        """Hold a warning, with the source line that Python prints below it, until the others have it too."""
        if _WARNING.match(line):
            key = _TIME_IN_WARNING.sub("[W ", line)
            warning = self._warnings.setdefault(key, _Warning(line, time.monotonic()))
            warning.ranks.add(tail.rank)
            tail.warning = warning
        elif tail.warning and line.startswith("  "):
            tail.warning.source = line
            tail.warning = None
        else:
            tail.warning = None
            self._print(tail.prefix + line)

    def _print_warnings(self, *, final: bool) -> None:
        """Print each warning once, with the number of ranks that it came from."""
        for key, warning in list(self._warnings.items()):
            everywhere = len(warning.ranks) == len(self._tails)
            if final or everywhere or time.monotonic() > warning.since + WARNING_HELD:
                del self._warnings[key]
                several = len(warning.ranks) > 1
                prefix = f"[{len(warning.ranks)} ranks] " if several else f"[rank {min(warning.ranks)}] "
                for line in filter(None, (warning.text, warning.source)):
                    self._print(prefix + line)

    @property
    def cut(self) -> bool:
        """Whether a log holds more than was shown."""
        return any(tail.cut for tail in self._tails)

    def _print(self, line: str) -> None:
        if not self._show:
            return
        if self._progress:
            line = "\r" + line.ljust(len(self._progress))
            self._progress = ""
        say(line)

    def _print_progress(self, text: str) -> None:
        """A line that a rank redraws in place is redrawn in place here too."""
        if text != self._progress and _redraws():
            print("\r" + text.ljust(len(self._progress)), end="", flush=True)
            self._progress = text


def _redraws() -> bool:
    return sys.stdout.isatty() or type(sys.stdout).__module__.startswith("ipykernel")


@dataclass
class _Warning:
    """One warning, which any number of ranks may print."""

    text: str
    since: float
    source: str = ""
    ranks: set[int] = field(default_factory=set)


class _Tail:
    """The end of one rank's log."""

    def __init__(self, rank: int, path: Path) -> None:
        self.path = path
        self.rank = rank
        self.prefix = f"[rank {rank}] "
        self.progress = ""
        self.warning: _Warning | None = None  # whose source line may come next
        self._file = open(path, "rb")  # noqa: SIM115 (closed in closing)
        self._rest = b""
        self._shown = 0
        self._held: list[str] = []
        self._count_held = 0

    def read(self, *, final: bool) -> list[str]:
        """New whole lines, up to the limit; what goes beyond it is counted."""
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        if final and self._rest:
            lines, self._rest = [*lines, self._rest], b""
        self.progress = self.prefix + self._last_redraw(self._rest) if b"\r" in self._rest else ""
        shown = []
        for raw in lines:
            text = self._last_redraw(raw)
            if _NOISE.match(text):
                continue
            if self._shown < LINES_SHOWN:
                self._shown += 1
                shown.append(text)
            else:
                self._count_held += 1
                self._held = [*self._held[-LAST_LINES + 1 :], text]
        return shown

    @property
    def cut(self) -> bool:
        return self._count_held > LAST_LINES

    def closing(self) -> list[str]:
        """What the limit held back: how much, where it is, and its last lines."""
        self._file.close()
        if not self._held:
            return []
        left_out = self._count_held - len(self._held)
        note = [f"… {left_out:,} more lines in {self.path}"] if left_out else []
        return note + self._held

    @staticmethod
    def _last_redraw(raw: bytes) -> str:
        parts = [part for part in raw.rstrip(b"\r").split(b"\r") if part.strip()]
        text = (parts[-1] if parts else b"").decode("utf-8", "replace")
        if len(text) <= LINE_WIDTH:
            return text
        return f"{text[:LINE_WIDTH]} … {len(text):,} characters in the log"
