"""What collectives left on every rank, before and after, and when the ranks came and left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ddp_src.errors import DataError
from ddp_src.plots.cells import HEIGHT, draw_column, draw_ranks, origin_handles
from ddp_src.plots.style import RANK_COLORS, house_style, new_figure, rank_line

TEN = (
    ("send / recv", "broadcast"),
    ("reduce", "all_reduce"),
    ("scatter", "gather"),
    ("all_gather", "reduce_scatter"),
    ("all_to_all", "barrier"),
)
_DETAILS = {
    "send / recv": " from 0 to 2",
    "broadcast": ", src=0",
    "reduce": ", dst=0",
    "scatter": ", src=0",
    "gather": ", dst=0",
}
_ONLY_ON = {"reduce": {0}}  # ranks whose result the documentation promises, where it is not all of them
_GAP = 1.0  # between before and after, in cells
_HEAD = 0.5  # room above the cells for the ranks' numbers
_INCHES = 0.45  # per unit of height


class Held(Protocol):
    before: Sequence[int]
    after: Sequence[int]


class Waited(Protocol):
    came: float
    left: float


@house_style()
def collectives(ranks: Sequence[Mapping[str, Held | Waited]], rows: Sequence[Sequence[str]] = TEN) -> Figure:
    """One panel for each name in `rows`: numbers before and after on every rank, or waiting times.

    Numbers that the documentation does not promise are hatched. `ranks[r][name]` is what rank r recorded.
    Raises DataError for a name that some rank has no record of.
    """
    for name in (name for row in rows for name in row):
        if any(name not in records for records in ranks):
            raise DataError(
                f"There is no record of {name!r} on every rank: name one of {', '.join(ranks[0])}.",
                f"不是每个 rank 都有 {name!r} 的记录：请从 {', '.join(ranks[0])} 中选择。",
            )
    depths = [max(_depth(records[name]) for records in ranks for name in row) for row in rows]
    heights = [depth * HEIGHT + _HEAD for depth in depths]
    figure = new_figure(height=_INCHES * sum(heights) + 0.35 * len(rows) + 0.45)
    grid = figure.subplots(
        len(rows), max(map(len, rows)), squeeze=False, gridspec_kw={"height_ratios": heights}
    )
    for row, panels, height in zip(rows, grid, heights, strict=True):
        for name, axes in zip(row, panels, strict=False):
            _panel(axes, name, [records[name] for records in ranks], height)
        for axes in panels[len(row) :]:
            axes.set_axis_off()
    handles = _legend(ranks, rows)
    if handles:
        figure.legend(handles=handles, loc="outside upper center", ncols=4, handlelength=1.4, fontsize=10)
    return figure


def _depth(record: Held | Waited) -> int:
    return max(len(record.before), len(record.after)) if hasattr(record, "before") else 3


def _legend(ranks: Sequence[Mapping[str, Held | Waited]], rows: Sequence[Sequence[str]]) -> list[Patch]:
    held = [name for row in rows for name in row if hasattr(ranks[0][name], "before")]
    return origin_handles(len(ranks), hatched=any(name in _ONLY_ON for name in held)) if held else []


def _panel(axes: Axes, name: str, records: Sequence[Held | Waited], height: float) -> None:
    axes.set_title(name + _DETAILS.get(name, ""), loc="left", weight="bold", fontsize=11)
    if hasattr(records[0], "before"):
        promised_on = _ONLY_ON.get(name, set(range(len(records))))
        _before_and_after(axes, records, promised_on, height)
    else:
        _timeline(axes, records)


def _before_and_after(axes: Axes, records: Sequence[Held], promised_on: set[int], height: float) -> None:
    count = len(records)
    after = count + _GAP
    for rank, held in enumerate(records):
        draw_column(axes, rank, held.before)
        draw_column(axes, after + rank, held.after, promised=rank in promised_on)
    for left in (0, after):
        draw_ranks(axes, left, count)
    arrow = {"arrowstyle": "-|>", "color": "black"}
    axes.annotate("", xy=(after - 0.1, -HEIGHT / 2), xytext=(count + 0.1, -HEIGHT / 2), arrowprops=arrow)
    axes.set(xlim=(-0.05, after + count + 0.05), ylim=(_HEAD - height - 0.05, _HEAD - 0.05))
    axes.set_axis_off()


def _timeline(axes: Axes, records: Sequence[Waited]) -> None:
    first = min(record.came for record in records)
    for rank, record in enumerate(records):
        came, left = 1e3 * (record.came - first), 1e3 * (record.left - first)
        axes.plot([came, left], [rank, rank], linewidth=2.5, **rank_line(rank))
        axes.plot(came, rank, marker="|", markersize=12, markeredgewidth=2.5, color=RANK_COLORS[rank])
        axes.plot(left, rank, marker="o", markersize=6, color=RANK_COLORS[rank])
    axes.text(0.03, 0.1, "| comes   ● goes on", transform=axes.transAxes, fontsize=10)
    axes.set(xlabel="time (ms)", ylim=(len(records) - 0.4, -0.6))
    axes.set_yticks(range(len(records)), [f"rank {rank}" for rank in range(len(records))])
    axes.tick_params("y", length=0)
