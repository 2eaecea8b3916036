"""Step time of several versions beside one that they are measured against."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ddp_src.plots.style import house_style, new_figure

_BAR = {"color": "#56B4E9", "edgecolor": "black", "linewidth": 0.8, "height": 0.62}


@house_style()
def version_times(models: Mapping[str, Mapping[str, Sequence[float]]], *, against: str) -> Figure:
    """A panel for each model, a bar for each version: the median of its ratios, one per round.

    `models[title][version]` are step times over that of `against` in the same round. The thin line runs
    from the first to the third quartile of the rounds, the dashed one marks 1.
    """
    versions = list(next(iter(models.values())))
    figure = new_figure(height=1.2 + 0.42 * len(versions))
    panels = figure.subplots(1, len(models), sharey=True, squeeze=False)[0]
    for axes, (title, ratios) in zip(panels, models.items(), strict=True):
        _panel(axes, title, ratios)
        axes.set_xlabel(f"step time / {against}")
    panels[0].set_yticks(range(len(versions)), versions)
    panels[0].invert_yaxis()
    return figure


def _panel(axes: Axes, title: str, ratios: Mapping[str, Sequence[float]]) -> None:
    longest = 0.0
    for row, times in enumerate(ratios.values()):
        low, middle, high = statistics.quantiles(times, n=4) if len(times) > 1 else [times[0]] * 3
        axes.barh(row, middle, **_BAR)
        axes.plot([low, high], [row, row], color="black", linewidth=1.4)
        axes.annotate(
            f"{middle:.2f}",
            (max(high, middle, 1.0), row),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
        )
        longest = max(longest, high, middle)
    axes.axvline(1, color="black", linewidth=1, linestyle=(0, (4, 2)), zorder=0)
    axes.set_xlim(0, 1.25 * max(longest, 1.0))
    axes.set_title(title, loc="left")
    axes.tick_params(axis="y", length=0)
