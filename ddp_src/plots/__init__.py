"""Figures made from run logs. Ranks never import this: figures are drawn where the records are read."""

from ddp_src.plots.accuracy import accuracy
from ddp_src.plots.diagram import one_step
from ddp_src.plots.loss import losses
from ddp_src.plots.phases import phases
from ddp_src.plots.replicas_apart import replicas_apart
from ddp_src.plots.run import draw_run
from ddp_src.plots.style import RANK_COLORS, RANK_LINES, house_style, new_figure, rank_line, save, to_png
from ddp_src.plots.version_timeline import version_timeline
from ddp_src.plots.version_times import version_times

__all__ = [
    "RANK_COLORS",
    "RANK_LINES",
    "accuracy",
    "draw_run",
    "house_style",
    "losses",
    "new_figure",
    "one_step",
    "phases",
    "rank_line",
    "replicas_apart",
    "save",
    "to_png",
    "version_timeline",
    "version_times",
]
