"""Two replicas with and without a sync: losses that look alike beside weights that do not."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D

from ddp_src.errors import DataError
from ddp_src.plots.style import RANK_COLORS, house_style, new_figure, rank_line
from ddp_src.runlog import Step

_OPEN = {"linestyle": "none", "markersize": 5, "markerfacecolor": "white"}
_MARKERS = ("o", "s", "^", "D")  # of the ranks, over and over


@house_style()
def replicas_apart(
    alone: Sequence[Sequence[Step]],
    synced: Sequence[Sequence[Step]],
    *,
    alone_apart: Sequence[float],
    synced_apart: Sequence[float],
) -> Figure:
    """Left: each rank's training loss. Right: ‖w₁ − w₀‖ on a log axis, where a zero lies on the floor.

    `alone` and `synced` are the steps of each rank without and with a sync, drawn as lines and as open
    marks; `…_apart` are the distances, the first before any step. Raises DataError if there is no step.
    """
    if not any(alone) or not any(synced):
        raise DataError(
            "There is no loss to compare because a run has no step: train for a step or more first.",
            "没有损失可比较，因为有一次训练连一步也没有记录：请先至少训练一步。",
        )
    figure = new_figure(height=3.9)
    left, right = figure.subplots(1, 2)
    _losses(left, alone, synced)
    _distances(right, alone_apart, synced_apart)
    ranks = range(len(alone))
    keys = {f"rank {r}": (Line2D([], [], **rank_line(r)), Line2D([], [], **_marks(r))) for r in ranks}
    keys["no sync"] = Line2D([], [], color="black")
    keys["with sync"] = tuple(Line2D([], [], **_marks(r) | {"markeredgecolor": "black"}) for r in ranks)
    figure.legend(
        keys.values(),
        keys,
        handler_map={tuple: HandlerTuple(ndivide=None)},
        loc="outside upper center",
        ncols=4,
        columnspacing=1.2,
        handlelength=3.2,
    )
    return figure


def _marks(rank: int) -> dict[str, object]:
    marker, color = _MARKERS[rank % len(_MARKERS)], RANK_COLORS[rank % len(RANK_COLORS)]
    return _OPEN | {"marker": marker, "markeredgecolor": color}


def _losses(axes: Axes, alone: Sequence[Sequence[Step]], synced: Sequence[Sequence[Step]]) -> None:
    for rank, steps in enumerate(alone):
        axes.plot([s.step for s in steps], [s.loss for s in steps], linewidth=1.2, **rank_line(rank))
    for rank, steps in enumerate(synced):
        apart = math.ceil(len(steps) / 16)
        some = steps[rank * apart // 2 :: apart]  # the ranks in turn, so that no mark hides another
        axes.plot([s.step for s in some], [s.loss for s in some], **_marks(rank))
    axes.set(xlabel="step", ylabel="training loss (cross-entropy, nats)")
    axes.set_ylim(bottom=0)


def _distances(axes: Axes, alone: Sequence[float], synced: Sequence[float]) -> None:
    positive = [d for d in (*alone, *synced) if 0 < d < math.inf]
    exponents = [math.floor(math.log10(d)) for d in positive] or [0]
    floor = 10.0 ** (min(exponents) - 1)
    axes.set_yscale("log")
    axes.plot(range(len(alone)), [max(d, floor) for d in alone], color="black", linewidth=1.2)
    some = range(0, len(synced), math.ceil(len(synced) / 16))
    axes.plot(some, [max(synced[i], floor) for i in some], marker="o", markeredgecolor="black", **_OPEN)
    axes.set(xlabel="step", ylabel="distance of the replicas, ‖w₁ − w₀‖")
    decades = range(min(exponents), max(exponents) + 1)
    axes.set_yticks([floor, *(10.0**e for e in decades)], ["0", *(f"{10.0**e:g}" for e in decades)])
    axes.set_ylim(floor / 1.6, 10.0 ** (max(exponents) + 1))
    axes.minorticks_off()
