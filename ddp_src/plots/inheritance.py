"""Who inherits what: for each way to start a rank its cost, and what became of each thing of the parent's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ddp_src.errors import DataError
from ddp_src.plots.style import house_style, new_figure

if TYPE_CHECKING:  # it loads torch, which drawing does not need
    from ddp_src.start_methods import Way

# fate: mark and fill
_LOOK = {
    "copied": ("○", "#DCEFFA"),
    "shared": ("●", "#FFD9A0"),
    "absent": ("–", "#FFFFFF"),
    "refused": ("×", "#F6C8D8"),
    "no GPU": ("?", "#EEEEEE"),
}
_BAR = {"color": "#BFE3F7", "edgecolor": "black", "width": 0.55}


@house_style()
def inheritance(ways: Sequence[Way]) -> Figure:
    """One column per way: start time in s, memory of a rank's own in MB, and below them the table of fates.

    Memory that was not measured is written as "not measured". Raises DataError for no ways at all.
    """
    if not ways:
        raise DataError(
            "There is nothing to draw because no way to start a rank was tried: pass the results of try_way.",
            "没有可画的内容，因为一种启动方式也没有试过：请传入 try_way 的结果。",
        )
    rows = list(ways[0].fate)
    figure = new_figure(height=2.9 + 0.36 * len(rows))
    time, memory, table = figure.subplots(3, 1, sharex=True, height_ratios=(1.1, 1.1, 0.36 * len(rows)))
    _bars(time, [way.seconds for way in ways], "start\n(s)")
    _bars(memory, [way.private_mb for way in ways], "own memory\n(MB)")
    for row, thing in enumerate(rows):
        for column, way in enumerate(ways):
            _cell(table, column, row, way.fate[thing])
    table.set(xlim=(-0.5, len(ways) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    table.set_yticks(range(len(rows)), rows)
    table.tick_params(length=0, labelbottom=False)
    table.spines[:].set_visible(False)
    time.set_xticks(range(len(ways)), [way.name for way in ways], weight="bold")
    time.tick_params("x", length=0, labeltop=True, labelbottom=False)
    memory.tick_params("x", length=0, labelbottom=False)
    return figure


def _bars(axes: Axes, values: Sequence[float | None], label: str) -> None:
    axes.bar(range(len(values)), [value or 0 for value in values], **_BAR)
    top = max((value or 0 for value in values), default=0) or 1
    for column, value in enumerate(values):
        text = "not measured" if value is None else f"{value:#.2g}" if value < 9.95 else f"{value:.0f}"
        axes.text(column, (value or 0) + 0.06 * top, text, ha="center", va="bottom", fontsize=10)
    axes.set_ylim(0, 1.45 * top)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_ylabel(label, rotation=0, ha="right", va="center")


def _cell(axes: Axes, column: int, row: int, fate: str) -> None:
    mark, fill = _LOOK[fate]
    corner = (column - 0.47, row - 0.44)
    axes.add_patch(Rectangle(corner, 0.94, 0.88, facecolor=fill, edgecolor="#999999", linewidth=0.8))
    weight = "bold" if fate in ("shared", "refused") else "normal"
    axes.text(column, row, f"{mark} {fate}", ha="center", va="center", fontsize=11, weight=weight)
