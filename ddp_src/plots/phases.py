"""Where a training step spends its time, rank by rank."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from ddp_src.errors import DataError
from ddp_src.plots.style import house_style, new_figure
from ddp_src.runlog import Step

# field of Step, label, fill, hatch: pale fills, so that numbers on them stay readable
PHASES = (
    ("data", "data", "#F2F2F2", ""),
    ("forward", "forward", "#BFE3F7", "//"),
    ("backward", "backward with all-reduce", "#FFD9A0", "xx"),
    ("update", "update", "#BFE8D8", ".."),
)
_WARM_UP = 5  # the first steps allocate memory, and DDP rebuilds its buckets


@house_style()
def phases(ranks: Sequence[Sequence[Step]]) -> Figure:
    """One stacked bar per rank: the median time in ms of each phase of a step.

    The first 5 steps are left out (of a run of fewer than 10, the first half). Raises DataError if no
    rank has recorded a step.
    """
    if not any(ranks):
        raise DataError(
            "There are no times to draw because no rank has recorded a step: train for a step or more first.",
            "没有耗时可画，因为没有任何 rank 记录过训练步：请先至少训练一步。",
        )
    figure = new_figure(height=1.3 + 0.45 * len(ranks))
    axes = figure.subplots()
    names = [f"rank {rank}" for rank in range(len(ranks))]
    ends = [0.0] * len(ranks)
    for field, label, fill, hatch in PHASES:
        widths = [_median_ms(steps, field) for steps in ranks]
        axes.barh(names, widths, 0.7, ends, label=label, color=fill, edgecolor="black", hatch=hatch)
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    axes.invert_yaxis()
    axes.tick_params("y", length=0)
    axes.set_xlabel("time per step (ms, median)")
    figure.legend(loc="outside upper center", ncols=4, handlelength=1.5, columnspacing=1.2)
    figure.draw_without_rendering()  # from here on bars have their final size in pixels
    for bars in axes.containers:
        _write_values(axes, bars)
    return figure


def _median_ms(steps: Sequence[Step], field: str) -> float:
    warm = steps[min(_WARM_UP, len(steps) // 2) :]
    return 1e3 * median(getattr(s, field) for s in warm) if warm else 0.0


def _write_values(axes: Axes, bars: BarContainer) -> None:
    """Write each bar's length in the middle of it, where it is long enough for that."""
    for bar, text in zip(bars, axes.bar_label(bars, fmt=_two_digits, label_type="center"), strict=True):
        text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 1.5})
        if text.get_window_extent().width > 0.85 * bar.get_window_extent().width:
            text.remove()


def _two_digits(ms: float) -> str:
    return f"{ms:.{2 if ms < 1 else 1 if ms < 10 else 0}f}"
