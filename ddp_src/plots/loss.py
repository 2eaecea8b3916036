"""Training loss per step: every rank, their mean, and one process that was given all their samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ddp_src.errors import DataError
from ddp_src.plots.style import house_style, new_figure, rank_line
from ddp_src.runlog import Step, mean_losses

_BOUND = 1e-12  # rounding in float64 stays far below, a mistake in the averaging far above
_OPEN_CIRCLES = {"linestyle": "none", "marker": "o", "markerfacecolor": "white", "markeredgecolor": "black"}
_INSET = (0.52, 0.52, 0.47, 0.4)  # left, bottom, width, height as fractions of the axes
_INSET_LABELS = (0.4, 0.35)  # where its own labels begin, from the left and from below


@house_style()
def losses(
    ranks: Sequence[Sequence[Step]], *, one_process: Sequence[Step] | None = None, title: str | None = None
) -> Figure:
    """Each rank's training loss (thin) and their mean weighted by samples (thick) at every global step.

    `one_process`, a run on the joined batches, is drawn as open circles, with |mean − one process| in an
    inset. Where ranks recorded different numbers of steps, the mean ends with the shortest. Raises
    DataError if no rank has recorded a step.
    """
    if not any(ranks):
        raise DataError(
            "There is no loss to draw because no rank has recorded a step: train for a step or more first.",
            "没有损失可画，因为没有任何 rank 记录过训练步：请先至少训练一步。",
        )
    legend_rows = math.ceil((len(ranks) + 2) / 4)
    figure = new_figure(height=4.0 + 0.23 * legend_rows)
    axes = figure.subplots()
    for rank, steps in enumerate(ranks):
        if steps:
            _curve(axes, {s.step: s.loss for s in steps}, f"rank {rank}", linewidth=1.2, **rank_line(rank))
    mean = dict(zip((s.step for s in ranks[0]), mean_losses(ranks), strict=False))
    if mean and len(ranks) > 1:
        _curve(axes, mean, "mean over samples", color="black", linewidth=2)
    axes.set(xlabel="step", ylabel="training loss (cross-entropy, nats)")
    axes.set_title(title, loc="left")
    _step_axis(axes, [s.step for steps in ranks for s in steps])
    if one_process:
        _add_one_process(axes, mean, {s.step: s.loss for s in one_process})
    else:
        axes.set_ylim(bottom=0)
    figure.legend(loc="outside upper center", ncols=4, handlelength=1.8, columnspacing=1.2)
    return figure


def _curve(axes: Axes, losses: Mapping[int, float], label: str, **line: object) -> None:
    marker = "." if len(losses) == 1 else None  # a line through one point would be invisible
    axes.plot(list(losses), list(losses.values()), label=label, marker=marker, **line)


def _step_axis(axes: Axes, steps: Sequence[int], *, ticks: int = 9) -> None:
    margin = max(0.5, 0.01 * (max(steps) - min(steps)))
    axes.set_xlim(min(steps) - margin, max(steps) + margin)
    axes.xaxis.set_major_locator(MaxNLocator(ticks, integer=True, min_n_ticks=1))


def _add_one_process(axes: Axes, mean: Mapping[int, float], alone: Mapping[int, float]) -> None:
    axes.plot(
        list(alone),
        list(alone.values()),
        label="one process, joined batch",
        markersize=6,
        markeredgewidth=1.4,
        markevery=math.ceil(len(alone) / 20),
        **_OPEN_CIRCLES,
    )
    _make_room(axes)
    inset = axes.inset_axes(_INSET)
    inset.set_title("|mean − one process| (nats)", loc="left")
    inset.set_xlabel("step", labelpad=1)
    _step_axis(inset, list(alone), ticks=4)
    _differences(inset, {step: abs(mean[step] - alone[step]) for step in mean if step in alone})


def _make_room(axes: Axes) -> None:
    """Raise the top of the axes until no curve runs under the inset."""
    left, foot = _INSET_LABELS
    first, last = axes.get_xlim()
    points = [(x, y) for line in axes.lines for x, y in line.get_xydata() if math.isfinite(y)]
    highest = max((y for _, y in points), default=1.0)
    under = max((y for x, y in points if x > first + left * (last - first)), default=0.0)
    axes.set_ylim(0, max(1.05 * highest, under / foot))


def _differences(axes: Axes, by_step: Mapping[int, float]) -> None:
    """Differences on a log axis; a zero, which has no logarithm, is drawn at the floor, labelled 0."""
    positive = [d for d in by_step.values() if 0 < d < math.inf]
    floor = math.floor(math.log10(min([*positive, _BOUND / 1e3]))) - 1
    top = math.ceil(math.log10(max([*positive, _BOUND])))
    axes.set_yscale("log")
    axes.plot(
        list(by_step),
        [max(d, 10.0**floor) for d in by_step.values()],
        markersize=3,
        markeredgewidth=0.8,
        **_OPEN_CIRCLES,
    )
    axes.axhline(_BOUND, color="black", linewidth=1, linestyle=(0, (4, 2)))
    axes.set_ylim(10.0 ** (floor - 0.6), 10.0 ** (top + 0.6))
    apart = math.ceil((top - floor) / 4)
    decades = [e for e in range(floor + 1, top + 1) if (e + 12) % apart == 0 and e - floor > apart / 2]
    axes.set_yticks([10.0**floor, *(10.0**e for e in decades)], ["0", *(f"1e{e}" for e in decades)])
    axes.minorticks_off()
