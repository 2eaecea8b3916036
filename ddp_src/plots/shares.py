"""Which rank sees which sample in which epoch, as a grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from ddp_src.errors import DataError
from ddp_src.plots.style import RANK_COLORS, house_style, new_figure

_ROW = 0.2  # inches per epoch
_RING = {"facecolor": "none", "edgecolor": "black", "linewidth": 2.2}


@house_style()
def shares(panels: Mapping[str, Sequence[Sequence[Sequence[int]]]], *, samples: int) -> Figure:
    """One grid per panel, sample × epoch; a cell has the colour and the number of the rank that sees it.

    panels: by title, `panels[title][rank][epoch]`, the numbers of the samples, each below `samples`.
    A sample seen twice in an epoch is ringed and shows both ranks; one that nobody sees stays white.
    Raises DataError if there is no epoch to draw.
    """
    epochs = max((len(rank) for ranks in panels.values() for rank in ranks), default=0)
    if not epochs:
        raise DataError(
            "There are no shares to draw because no rank has finished an epoch: train for an epoch first.",
            "没有可画的样本分配，因为没有任何 rank 跑完一轮：请先至少训练一轮。",
        )
    figure = new_figure(height=0.75 + len(panels) * (0.42 + _ROW * epochs))
    grids = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (title, ranks) in zip(grids, panels.items(), strict=True):
        axes.set_title(title, loc="left")
        for epoch in range(epochs):
            _draw_epoch(axes, epoch, [rank[epoch] for rank in ranks if epoch < len(rank)])
        _label_axes(axes, samples, epochs)
    grids[-1].set_xlabel("sample (number in the data set)")
    world_size = max(len(ranks) for ranks in panels.values())
    keys = [Patch(color=rank_fill(rank), label=f"rank {rank}") for rank in range(world_size)]
    keys.append(Patch(label="seen twice in this epoch", **_RING))
    figure.legend(handles=keys, loc="outside upper center", ncols=4, handlelength=1.2, columnspacing=1.5)
    return figure


def _draw_epoch(axes: Axes, epoch: int, ranks: Sequence[Sequence[int]]) -> None:
    seen_by: dict[int, list[int]] = {}
    for rank, numbers in enumerate(ranks):
        for number in numbers:
            seen_by.setdefault(number, []).append(rank)
    for number, owners in seen_by.items():
        width = 1 / len(owners)
        for place, rank in enumerate(owners):
            left = number - 0.5 + place * width
            box = Rectangle((left, epoch - 0.5), width, 1, fc=rank_fill(rank), ec="white", lw=0.8)
            axes.add_patch(box)
            style = {"ha": "center", "va": "center_baseline", "fontsize": 8.5, "weight": "bold"}
            axes.text(left + width / 2, epoch, str(rank), color=rank_ink(rank), **style)
        if len(owners) > 1:
            axes.add_patch(Rectangle((number - 0.5, epoch - 0.5), 1, 1, zorder=3, **_RING))


def _label_axes(axes: Axes, samples: int, epochs: int) -> None:
    axes.set(xlim=(-0.6, samples - 0.4), ylim=(epochs - 0.4, -0.6), ylabel="epoch")
    axes.set_xticks(range(0, samples, max(1, round(samples / 20))))
    axes.set_yticks(range(0, epochs, max(1, round(epochs / 5))))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def rank_fill(rank: int) -> tuple[float, float, float]:
    """The rank's colour, lighter with each rank, so that neighbours differ in grey too."""
    white = (0.0, 0.3, 0.7)[rank % 3]
    red, green, blue = (white + (1 - white) * part for part in to_rgb(RANK_COLORS[rank % len(RANK_COLORS)]))
    return red, green, blue


def rank_ink(rank: int) -> str:
    """The colour of text on the rank's fill: white on a dark one, black on a light one."""
    red, green, blue = rank_fill(rank)
    return "white" if 0.3 * red + 0.6 * green + 0.1 * blue < 0.5 else "black"
