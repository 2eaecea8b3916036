"""How a list and a tensor travel to two ranks of `torch.multiprocessing.spawn`: a diagram."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ddp_src.plots.style import RANK_COLORS, house_style, new_figure

_PARENT, _BETWEEN, _RANKS = 0.0, 2.6, 5.2  # x of the three columns
_HALF_WIDTH, _HALF_HEIGHT = 0.75, 0.27


@house_style()
def arguments() -> Figure:
    """Above, the list: bytes, from which each rank builds its own. Below, the tensor: one memory for all."""
    figure = new_figure(height=3.4)
    axes = figure.subplots()
    for x, name in ((_PARENT, "parent"), (_RANKS, "ranks")):
        axes.text(x, 4.0, name, ha="center", weight="bold")
    _list(axes)
    axes.axhline(1.72, color="#BBBBBB", linewidth=0.8)
    _tensor(axes)
    axes.set(xlim=(-0.9, 6.1), ylim=(-0.4, 4.4))
    axes.set_axis_off()
    return figure


def _list(axes: Axes) -> None:
    _box(axes, _PARENT, 2.9, "list [ ]", "black")
    _box(axes, _BETWEEN, 2.9, "pickled bytes", "#888888")
    _arrow(axes, (_PARENT, 2.9), (_BETWEEN, 2.9))
    for rank, y in enumerate((3.4, 2.4)):
        _box(axes, _RANKS, y, f"rank {rank}: list [{rank}]", RANK_COLORS[rank])
        _arrow(axes, (_BETWEEN, 2.9), (_RANKS, y))


def _tensor(axes: Axes) -> None:
    _box(axes, _PARENT, 0.5, "tensor", "black")
    _box(axes, _BETWEEN, 0.5, "shared memory\n2.0", "black", half_height=0.42, fill="#FFD9A0")
    _arrow(axes, (_PARENT, 0.5), (_BETWEEN, 0.5))
    for rank, y in enumerate((1.0, 0.0)):
        _box(axes, _RANKS, y, f"rank {rank}: tensor", RANK_COLORS[rank])
        _arrow(axes, (_RANKS, y), (_BETWEEN, 0.5))


def _box(
    axes: Axes,
    x: float,
    y: float,
    text: str,
    color: str,
    *,
    half_height: float = _HALF_HEIGHT,
    fill: str = "white",
) -> None:
    corner = (x - _HALF_WIDTH, y - half_height)
    axes.add_patch(
        Rectangle(corner, 2 * _HALF_WIDTH, 2 * half_height, edgecolor=color, facecolor=fill, linewidth=1.6)
    )
    axes.text(x, y, text, ha="center", va="center", fontsize=10, linespacing=1.4)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    """From the side of one box to the facing side of another."""
    side = _HALF_WIDTH if end[0] > start[0] else -_HALF_WIDTH
    arrow = {"arrowstyle": "-|>", "color": "black", "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", xy=(end[0] - side, end[1]), xytext=(start[0] + side, start[1]), arrowprops=arrow)
