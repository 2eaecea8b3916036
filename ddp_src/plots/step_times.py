"""How long a training step takes and what it is made of, one bar per way to run it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ddp_src.errors import DataError
from ddp_src.plots.phases import PHASES
from ddp_src.plots.style import house_style, new_figure
from ddp_src.runlog import Step

_LOOK = {field: {"color": fill, "hatch": hatch} for field, _, fill, hatch in PHASES}


@house_style()
def step_times(steps: Mapping[object, Step], *, first: str = "data", ylabel: str = "") -> Figure:
    """One stacked bar per step under its name: the ms of each phase, `first` on the left.

    Behind each bar stand its length and the share of `first` in it. Raises DataError if there is no step.
    """
    if not steps:
        raise DataError(
            "There are no times to draw because there is no step: time one or more.",
            "没有耗时可画，因为一个训练步也没有：请至少计时一步。",
        )
    figure = new_figure(height=1.3 + 0.42 * len(steps))
    axes = figure.subplots()
    names = [str(name) for name in steps]
    ends = [0.0] * len(names)
    for phase in sorted(_LOOK, key=lambda phase: phase != first):  # stable: the others keep their order
        widths = [1e3 * getattr(step, phase) for step in steps.values()]
        axes.barh(names, widths, 0.7, ends, label=phase, edgecolor="black", **_LOOK[phase])
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    _write_totals(axes, ends, first)
    axes.invert_yaxis()
    axes.tick_params("y", length=0)
    axes.set(xlabel="time per step (ms, median)", ylabel=ylabel)
    figure.legend(loc="outside upper center", ncols=4, handlelength=1.5, columnspacing=1.2)
    return figure


def _write_totals(axes: Axes, ends: Sequence[float], first: str) -> None:
    shares = [bar.get_width() / end for bar, end in zip(axes.containers[0], ends, strict=True)]
    for row, (end, share) in enumerate(zip(ends, shares, strict=True)):
        text = f"{end:.{1 if end < 100 else 0}f} ms, {100 * share:.0f} % {first}"
        axes.annotate(text, (end, row), (6, 0), textcoords="offset points", va="center", fontsize=10)
    axes.set_xlim(0, 1.35 * max(ends))  # room for the longest bar's text
