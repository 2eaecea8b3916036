"""Numbers on ranks as coloured cells. A number's decimal digits say which ranks it is from."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch, Rectangle
from matplotlib.patheffects import withStroke

from ddp_src.plots.style import RANK_COLORS

HEIGHT = 0.62  # of a cell whose width is 1
_HATCH = {"facecolor": "none", "edgecolor": "#444444", "hatch": "////", "linewidth": 0}


def origins(number: int) -> list[int]:
    """The ranks whose power of ten is in `number`: 110 has something from ranks 1 and 2."""
    return [rank for rank, digit in enumerate(reversed(str(number))) if digit not in "0-"]


def pale(rank: int) -> tuple[float, ...]:
    """The rank's colour, light enough for black numbers on it."""
    return tuple(0.45 * part + 0.55 for part in to_rgb(RANK_COLORS[rank % len(RANK_COLORS)]))


def draw_column(
    axes: Axes,
    left: float,
    column: Sequence[int],
    *,
    promised: bool = True,
    fontsize: float = 11,
    framed: Sequence[int] = (),
) -> None:
    """One rank's numbers, the first at the top; an empty column is a dash.

    Each cell is striped with the colours of its numbers' origins, hatched where not `promised`; the cells
    whose places are in `framed` have a thick frame.
    """
    if not column:
        axes.text(left + 0.5, -HEIGHT / 2, "–", ha="center", va="center", color="#777777")
    for place, number in enumerate(column):
        bottom = -(place + 1) * HEIGHT
        ranks = origins(number)
        for stripe, rank in enumerate(ranks):
            width = 1 / len(ranks)
            axes.add_patch(
                Rectangle((left + stripe * width, bottom), width, HEIGHT, facecolor=pale(rank), linewidth=0)
            )
        if not promised:
            axes.add_patch(Rectangle((left, bottom), 1, HEIGHT, **_HATCH))
        thick = place in framed
        axes.add_patch(
            Rectangle(
                (left, bottom),
                1,
                HEIGHT,
                facecolor="none",
                edgecolor="black",
                linewidth=2.4 if thick else 0.8,
                zorder=3 if thick else 2,
            )
        )
        axes.text(
            left + 0.5,
            bottom + HEIGHT / 2,
            str(number),
            ha="center",
            va="center_baseline",
            fontsize=fontsize,
            zorder=4,
            path_effects=None if promised else [withStroke(linewidth=2.5, foreground="white")],
        )


def draw_ranks(axes: Axes, left: float, count: int) -> None:
    """The ranks' own numbers above their columns, in their colours."""
    for rank in range(count):
        color = RANK_COLORS[rank % len(RANK_COLORS)]
        axes.text(left + rank + 0.5, 0.1, f"r{rank}", ha="center", fontsize=10, weight="bold", color=color)


def origin_handles(ranks: int, *, hatched: bool) -> list[Patch]:
    """What the colours mean, for a legend."""
    handles = [
        Patch(facecolor=pale(rank), edgecolor="black", linewidth=0.8, label=f"from rank {rank}")
        for rank in range(ranks)
    ]
    if hatched:
        handles.append(
            Patch(facecolor="white", edgecolor="#444444", hatch="////", linewidth=0.8, label="not promised")
        )
    return handles
