"""One DDP step as a picture: what the two ranks have in common at each stage, and what not."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from ddp_src.plots.style import RANK_COLORS, house_style, new_figure

# Text in the box of rank r, and how the two boxes compare.
_STAGES = (
    ("weights\nw", "="),
    ("own samples\nloss L{r}", "≠"),
    ("backward\ngradient g{r}", "≠"),
    None,  # the all-reduce, which is one for both
    ("Adam(w, g)\nnew weights", "="),
)
_WIDTH, _HEIGHT, _APART = 1.15, 0.62, 1.42
_LANES = (1.35, 0.0)  # height of the middle of rank 0's and rank 1's boxes


@house_style()
def one_step() -> Figure:
    """Left to right: equal weights, own losses and gradients, one all-reduce, equal weights again."""
    figure = new_figure(height=2.3)
    axes = figure.subplots()
    for column, stage in enumerate(_STAGES):
        x = column * _APART
        if stage is None:
            middle = sum(_LANES) / 2
            _box(axes, x, middle, "all-reduce\ng =\n(g0 + g1) / 2", color="black", height=2.0)
        else:
            text, relation = stage
            for rank, y in enumerate(_LANES):
                _box(axes, x, y, text.format(r=rank), color=RANK_COLORS[rank])
            axes.text(x, sum(_LANES) / 2, relation, fontsize=20, ha="center", va="center")
        if column:
            for y in _LANES:
                _arrow(axes, x - _APART + _WIDTH / 2, x - _WIDTH / 2, y)
    for rank, y in enumerate(_LANES):
        axes.text(-0.75, y, f"rank {rank}", color=RANK_COLORS[rank], ha="right", va="center", weight="bold")
    axes.set(xlim=(-1.5, 4 * _APART + 0.7), ylim=(-0.5, 1.85))
    axes.set_axis_off()
    return figure


def _box(axes: Axes, x: float, y: float, text: str, *, color: str, height: float = _HEIGHT) -> None:
    corner = (x - _WIDTH / 2, y - height / 2)
    style = "round,pad=0,rounding_size=0.08"
    axes.add_patch(
        FancyBboxPatch(corner, _WIDTH, height, boxstyle=style, edgecolor=color, facecolor="white", lw=1.6)
    )
    axes.text(x, y, text, ha="center", va="center", fontsize=10, linespacing=1.4)


def _arrow(axes: Axes, start: float, end: float, y: float) -> None:
    arrow = {"arrowstyle": "-|>", "color": "black", "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", xy=(end, y), xytext=(start, y), arrowprops=arrow)
