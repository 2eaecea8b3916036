"""Figures made from run logs. Ranks never import this: figures are drawn where the records are read."""

from ddp_src.plots.accuracy import accuracy
from ddp_src.plots.arguments import arguments
from ddp_src.plots.backward_timeline import backward_timeline
from ddp_src.plots.bucket_map import bucket_map
from ddp_src.plots.collectives import collectives
from ddp_src.plots.dealing import dealing
from ddp_src.plots.diagram import one_step
from ddp_src.plots.gradients import Joined, gradient_of_halves, joined_gradients
from ddp_src.plots.inheritance import inheritance
from ddp_src.plots.loss import losses
from ddp_src.plots.message_time import message_time
from ddp_src.plots.phases import phases
from ddp_src.plots.replicas_apart import replicas_apart
from ddp_src.plots.ring import ring
from ddp_src.plots.run import draw_run
from ddp_src.plots.shares import shares
from ddp_src.plots.step_times import step_times
from ddp_src.plots.style import RANK_COLORS, RANK_LINES, house_style, new_figure, rank_line, save, to_png
from ddp_src.plots.version_timeline import version_timeline
from ddp_src.plots.version_times import version_times

__all__ = [
    "RANK_COLORS",
    "RANK_LINES",
    "Joined",
    "accuracy",
    "arguments",
    "backward_timeline",
    "bucket_map",
    "collectives",
    "dealing",
    "draw_run",
    "gradient_of_halves",
    "house_style",
    "inheritance",
    "joined_gradients",
    "losses",
    "message_time",
    "new_figure",
    "one_step",
    "phases",
    "rank_line",
    "replicas_apart",
    "ring",
    "save",
    "shares",
    "step_times",
    "to_png",
    "version_timeline",
    "version_times",
]
