"""Ctrl-C during a launch: the first one ends it, and no moment is so bad that a rank is forgotten."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Interrupts:
    """A context in which an interrupt waits, but for the block of `may_come`, which it ends.

    After the first one more of them change nothing: they come from the same impatient finger.
    """

    def __init__(self) -> None:
        self._let_through = self._came = self._waiting = False
        self._previous = None  # elsewhere than in the main thread, and where they are ignored, none comes

    def __enter__(self) -> Interrupts:
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler) and threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        if self._previous:
            signal.signal(signal.SIGINT, self._previous)
        if self._waiting and not self._came:
            signal.raise_signal(signal.SIGINT)

    @contextmanager
    def may_come(self) -> Iterator[None]:
        """Let the first interrupt raise, also one that has waited; then none, whatever ends the block."""
        try:
            self._let_through = True
            if self._waiting:
                signal.raise_signal(signal.SIGINT)
            yield
        finally:
            self._let_through = False

    def _hear(self, *args: object) -> None:
        if not self._let_through:
            self._waiting = True
            return
        self._let_through, self._came = False, True
        self._previous(*args)
