"""A ring all-reduce, one frame per step: which chunk of which rank holds whose numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.figure import Figure

from ddp_src.plots.cells import HEIGHT, draw_column, draw_ranks, origin_handles
from ddp_src.plots.style import house_style, new_figure

_COLUMNS = 4


@house_style()
def ring(ranks: Sequence[Sequence[Sequence[int]]], total: Sequence[Sequence[int]]) -> Figure:
    """`ranks[r][s]` are rank r's numbers, one per chunk, after step s (s = 0: at the start).

    A thick frame marks the chunk that a step changed. The last frame is `total`, one list per rank: what
    all_reduce left.
    """
    frames = [list(frame) for frame in zip(*ranks, strict=True)]
    half = (len(frames) - 1) // 2
    titles = ["start", *(f"step {s}: {'add' if s <= half else 'copy'}" for s in range(1, len(frames)))]
    count, chunks = len(ranks), len(frames[0][0])
    rows = math.ceil((len(frames) + 1) / _COLUMNS)
    figure = new_figure(height=rows * (0.34 * chunks + 0.5) + 0.5)
    grid = figure.subplots(rows, _COLUMNS, squeeze=False).flatten()
    previous = frames[0]
    for axes, title, frame in zip(grid, [*titles, "all_reduce"], [*frames, total], strict=False):
        draw_ranks(axes, 0, count)
        for rank, column in enumerate(frame):
            changed = [c for c, number in enumerate(column) if number != previous[rank][c]]
            draw_column(axes, rank, column, fontsize=9, framed=changed if title != "all_reduce" else ())
        axes.set_title(title, loc="left", weight="bold", fontsize=11)
        axes.set(xlim=(-0.05, count + 0.05), ylim=(-chunks * HEIGHT - 0.05, 0.5))
        previous = frame
    for axes in grid:
        axes.set_axis_off()
    figure.legend(
        handles=origin_handles(count, hatched=False), loc="outside upper center", ncols=count, fontsize=10
    )
    return figure
