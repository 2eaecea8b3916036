"""Figures made from run logs. Ranks never import this: figures are drawn where the records are read."""

from .accuracy import accuracy
from .loss import losses
from .phases import phases
from .run import draw_run
from .style import RANK_COLORS, RANK_LINES, house_style, new_figure, rank_line, save, to_png

__all__ = [
    "RANK_COLORS",
    "RANK_LINES",
    "accuracy",
    "draw_run",
    "house_style",
    "losses",
    "new_figure",
    "phases",
    "rank_line",
    "save",
    "to_png",
]
