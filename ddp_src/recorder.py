"""Keep what a rank records: in memory, in its run log, and, for one rank, as a progress line."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import torch
from tqdm import tqdm

from ddp_src.runlog import Epoch, RunLogWriter, Step


@dataclass
class History:
    """What one rank recorded while it trained, and the SHA-1 of its parameters at the end."""

    steps: list[Step] = field(default_factory=list)
    epochs: list[Epoch] = field(default_factory=list)
    digest: str = ""


class Recorder:
    """Takes each record as it is made. `log` is None where nothing is to be written."""

    def __init__(self, log: RunLogWriter | None, *, done: int, total: int, progress: bool) -> None:
        self.history = History()
        self._log = log
        tqdm.set_lock(threading.RLock())  # its own would be a semaphore, which a killed rank leaves behind
        self._bar = tqdm(
            desc="training", initial=done, total=total, unit="step", ncols=90, disable=not progress
        )

    def add(self, record: Step | Epoch) -> None:
        if self._log:
            self._log.write(record)
        if isinstance(record, Step):
            self.history.steps.append(record)
            self._bar.update()
        else:
            self.history.epochs.append(record)
            self._bar.set_postfix_str(f"epoch {record.epoch + 1}, test {record.accuracy:.1%}")

    def close(self) -> None:
        self._bar.close()
        if self._log:
            self._log.close()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Stopwatch:
    """Seconds between laps. On a GPU, where work is queued, a lap ends when the queue is empty."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._last = time.perf_counter()

    def lap(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        now = time.perf_counter()
        seconds, self._last = now - self._last, now
        return seconds
