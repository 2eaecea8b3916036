"""How a DistributedSampler deals the samples of one epoch out to its ranks."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from ddp_src.errors import DataError
from ddp_src.plots.shares import rank_fill, rank_ink
from ddp_src.plots.style import RANK_COLORS, house_style, new_figure

_Color = str | tuple[float, float, float]

_WIDTH, _HEIGHT = 0.8, 0.66  # of a box, where boxes stand 1 apart


@house_style()
def dealing(shares: Sequence[Sequence[int]], *, samples: int) -> Figure:
    """The shuffled order with its repeats on top; below it, each number under its place, in its rank's lane.

    shares: `shares[rank]`, the numbers that `DistributedSampler` gives that rank, equally many to each.
    A lane has the fill that its rank has in the grid of `shares`. Whatever goes beyond `samples` is a
    repeat and has a dashed edge. Raises DataError if the shares are unequal.
    """
    world_size = len(shares)
    if len({len(share) for share in shares}) != 1:
        raise DataError(
            f"The ranks have {', '.join(str(len(share)) for share in shares)} samples: a sampler that deals "
            "them out one by one gives each rank equally many.",
            f"各个 rank 分到的样本数是 {'、'.join(str(len(share)) for share in shares)}：轮流发牌的采样器，"
            "应该让每个 rank 的样本数相等。",
        )
    slots = [shares[slot % world_size][slot // world_size] for slot in range(world_size * len(shares[0]))]
    figure = new_figure(height=1.0 + 0.42 * (world_size + 1))
    axes = figure.subplots()
    for slot, number in enumerate(slots):
        rank, is_repeat = slot % world_size, slot >= samples
        _box(axes, slot, 0, number, fill="white", ink="black", is_repeat=is_repeat)
        lane = -1.25 - rank
        axes.plot([slot, slot], [-_HEIGHT / 2, lane + _HEIGHT / 2], color="#AAAAAA", linewidth=1, zorder=0)
        _box(axes, slot, lane, number, fill=rank_fill(rank), ink=rank_ink(rank), is_repeat=is_repeat)
    axes.text(-0.75, 0, "order of\nthe epoch", ha="right", va="center")
    for rank in range(world_size):
        style = {"ha": "right", "va": "center", "weight": "bold", "color": RANK_COLORS[rank]}
        axes.text(-0.75, -1.25 - rank, f"rank {rank}", **style)
    if len(slots) > samples:
        _show_repeats(axes, samples, len(slots))
    axes.set(xlim=(-2.3, len(slots) - 0.4), ylim=(-0.75 - world_size, 1.7))
    axes.set_axis_off()
    return figure


def _show_repeats(axes: Axes, samples: int, slots: int) -> None:
    """A bracket over the first samples, one over their repeats, and an arrow from the one to the other."""
    count, low, high = slots - samples, 0.62, 1.15
    for first in (0, samples):
        ends = (first - _WIDTH / 2, first + count - 1 + _WIDTH / 2)
        axes.plot(ends, (low, low), color="black", linewidth=1.6, solid_capstyle="butt")
    start, end = (count - 1) / 2, samples + (count - 1) / 2
    axes.plot((start, start, end), (low, high, high), color="black", linewidth=1)
    arrow = {"arrowstyle": "-|>", "color": "black", "shrinkA": 0, "shrinkB": 1}
    axes.annotate("", xy=(end, low), xytext=(end, high), arrowprops=arrow)
    axes.text((start + end) / 2, high + 0.08, "the first ones again", ha="center", va="bottom")


def _box(axes: Axes, x: float, y: float, number: int, *, fill: _Color, ink: _Color, is_repeat: bool) -> None:
    corner = (x - _WIDTH / 2, y - _HEIGHT / 2)
    shape = {"boxstyle": "round,pad=0,rounding_size=0.08", "linewidth": 1.8}
    line = (0, (3, 1.5)) if is_repeat else "solid"
    box = FancyBboxPatch(corner, _WIDTH, _HEIGHT, facecolor=fill, edgecolor="black", linestyle=line, **shape)
    axes.add_patch(box)
    axes.text(x, y, str(number), color=ink, ha="center", va="center_baseline", fontsize=11)
