"""Test accuracy per epoch, with the uncertainty that a test set of this size leaves."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ddp_src.errors import DataError
from ddp_src.plots.style import house_style, new_figure
from ddp_src.runlog import Epoch


@house_style()
def accuracy(epochs: Sequence[Epoch]) -> Figure:
    """Test accuracy in % after each epoch, within a band of one standard error √(p(1 − p)/n).

    Raises DataError if there are no epochs.
    """
    if not epochs:
        raise DataError(
            "There is no accuracy to draw because no epoch was evaluated: train for an epoch or more first.",
            "没有准确率可画，因为还没有评估过任何一轮：请先至少训练一轮。",
        )
    done = [e.epoch + 1 for e in epochs]
    percent = [100 * e.accuracy for e in epochs]
    error = [100 * math.sqrt(e.accuracy * (1 - e.accuracy) / e.samples) for e in epochs]
    figure = new_figure(height=3.4)
    axes = figure.subplots()
    low = [p - s for p, s in zip(percent, error, strict=True)]
    high = [p + s for p, s in zip(percent, error, strict=True)]
    axes.fill_between(done, low, high, color="#CCCCCC", linewidth=0)
    axes.plot(done, percent, color="black", linewidth=2, marker="o", markersize=4)
    axes.annotate(
        f"{percent[-1]:.1f} ± {error[-1]:.1f} %",
        (done[-1], percent[-1]),
        xytext=(8, 0),
        textcoords="offset points",
        verticalalignment="center",
    )
    axes.set(xlabel="epochs done", ylabel="test accuracy (%)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    return figure
