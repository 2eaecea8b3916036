"""What each rank records: one JSON line per step, one file per rank, readable after a crash."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ddp_src.files import whole_file


@dataclass(frozen=True)
class Step:
    """One training step as one rank saw it.

    `loss` is the mean over this rank's `samples`; `step` counts from 0 over the whole run;
    `data`, `forward`, `backward` and `update` are seconds (the all-reduce is inside `backward`).
    """

    epoch: int
    step: int
    loss: float
    samples: int
    data: float = 0.0
    forward: float = 0.0
    backward: float = 0.0
    update: float = 0.0


@dataclass(frozen=True)
class Epoch:
    """One evaluation over the whole test set, each sample counted once, the same on every rank.

    `step` is the number of training steps done when it was made; `accuracy` is a fraction, 0 to 1.
    """

    epoch: int
    step: int
    accuracy: float
    loss: float
    samples: int


@dataclass(frozen=True)
class RankLog:
    """All that one rank recorded, in order."""

    rank: int
    steps: list[Step] = field(default_factory=list)
    epochs: list[Epoch] = field(default_factory=list)


def mean_losses(ranks: Sequence[Sequence[Step]]) -> list[float]:
    """The loss of each step over all ranks, weighted by samples: Σ loss·samples / Σ samples.

    Steps that not every rank has recorded yet are left out.
    """
    means = []
    for at_step in zip(*ranks, strict=False):
        samples = sum(s.samples for s in at_step)
        means.append(sum(s.loss * s.samples for s in at_step) / samples)
    return means


class RunLogWriter:
    """Append records to `<folder>/rank<r>.jsonl`, one whole line per record, flushed at once."""

    def __init__(self, folder: str | Path, rank: int, *, keep_steps: int = 0) -> None:
        """Keep the first `keep_steps` steps of an earlier run in the same folder, drop the rest."""
        self.path = Path(folder) / f"rank{rank}.jsonl"
        kept = [r for r in _records(self.path) if _is_before(r, keep_steps)]
        with whole_file(self.path) as file:
            file.writelines(_line(record).encode() for record in kept)
        self._file = open(self.path, "a", encoding="utf-8")  # noqa: SIM115 (closed in close)

    def write(self, record: Step | Epoch) -> None:
        self._file.write(_line(record))
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> RunLogWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_run(folder: str | Path) -> list[RankLog]:
    """Read the logs of all ranks of a run, in rank order; a torn last line is ignored."""
    ranks = []
    while (path := Path(folder) / f"rank{len(ranks)}.jsonl").exists():
        records = list(_records(path))
        ranks.append(
            RankLog(
                rank=len(ranks),
                steps=[r for r in records if isinstance(r, Step)],
                epochs=[r for r in records if isinstance(r, Epoch)],
            )
        )
    return ranks


_KINDS = {"step": Step, "epoch": Epoch}


def _line(record: Step | Epoch) -> str:
    kind = next(k for k, cls in _KINDS.items() if type(record) is cls)
    return json.dumps({"kind": kind, **asdict(record)}) + "\n"


def _records(path: Path) -> Iterable[Step | Epoch]:
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            fields = json.loads(line)
        except ValueError:  # the line that a killed rank was writing
            return
        yield _KINDS[fields.pop("kind")](**fields)


def _is_before(record: Step | Epoch, keep_steps: int) -> bool:
    done = record.step + 1 if isinstance(record, Step) else record.step
    return done <= keep_steps
