"""Figures made from run logs. Ranks never import this: figures are drawn where the records are read."""

from ddp_src.plots.accuracy import accuracy
from ddp_src.plots.arguments import arguments
from ddp_src.plots.diagram import one_step
from ddp_src.plots.inheritance import inheritance
from ddp_src.plots.loss import losses
from ddp_src.plots.phases import phases
from ddp_src.plots.run import draw_run
from ddp_src.plots.style import RANK_COLORS, RANK_LINES, house_style, new_figure, rank_line, save, to_png

__all__ = [
    "RANK_COLORS",
    "RANK_LINES",
    "accuracy",
    "arguments",
    "draw_run",
    "house_style",
    "inheritance",
    "losses",
    "new_figure",
    "one_step",
    "phases",
    "rank_line",
    "save",
    "to_png",
]
