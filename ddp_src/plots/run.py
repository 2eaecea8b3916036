"""The three pictures of a run folder."""

from __future__ import annotations

from pathlib import Path

from ddp_src.errors import CheckpointError
from ddp_src.plots.accuracy import accuracy
from ddp_src.plots.loss import losses
from ddp_src.plots.phases import phases
from ddp_src.plots.style import save
from ddp_src.runlog import read_run


def draw_run(folder: str | Path) -> list[Path]:
    """Write loss.png, phases.png and, once an epoch is done, accuracy.png into a run folder.

    Returns the files written. Raises CheckpointError if the folder holds no recorded step or cannot be
    written to.
    """
    folder = Path(folder)
    logs = read_run(folder)
    steps = [log.steps for log in logs]
    if not any(steps):
        raise CheckpointError(
            f"Nothing can be drawn in {folder}, its rank logs hold no training step: name the folder of a "
            "run that has trained.",
            f"{folder} 里没有可画的内容，各 rank 的日志中没有训练步：请指定一个已经训练过的运行文件夹。",
        )
    figures = {"loss.png": losses(steps), "phases.png": phases(steps)}
    epochs = max((log.epochs for log in logs), key=len)  # equal on all ranks that lived to write them
    if epochs:
        figures["accuracy.png"] = accuracy(epochs)
    return [save(figure, folder / name) for name, figure in figures.items()]
