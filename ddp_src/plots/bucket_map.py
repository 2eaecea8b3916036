"""How a model's gradients are cut into buckets, one row per setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ddp_src.errors import DataError
from ddp_src.plots.style import house_style, new_figure

_EARLY = {"facecolor": "#8CC8EC", "edgecolor": "black", "linewidth": 0.8}
_LAST = {"facecolor": "#F2F2F2", "edgecolor": "black", "linewidth": 0.8, "hatch": "xx"}


@house_style()
def bucket_map(settings: Mapping[str, Sequence[int]]) -> Figure:
    """One bar per setting: its buckets, in bytes, in the order in which backward fills them.

    The last bucket is hatched: it is full with the last gradient. Buckets too thin to see are counted beside
    the bar. Raises DataError without any bucket.
    """
    if not settings or not all(settings.values()):
        raise DataError(
            "There are no buckets to draw: give each setting the sizes of at least one bucket.",
            "没有桶可画：请为每种设置给出至少一个桶的大小。",
        )
    figure = new_figure(height=1.5 + 0.42 * len(settings))
    axes = figure.subplots()
    for row, sizes in enumerate(settings.values()):
        start = 0.0
        for number, size in enumerate(sizes, 1):
            axes.barh(row, size / 1e6, 0.66, start, **(_LAST if number == len(sizes) else _EARLY))
            start += size / 1e6
        axes.annotate(
            _count(sizes), (start, row), xytext=(6, 0), textcoords="offset points", va="center", fontsize=10
        )
    axes.set_yticks(range(len(settings)), list(settings))
    axes.tick_params("y", length=0)
    axes.set_ylim(len(settings) - 0.4, -0.6)
    axes.set_xlim(0, 1.4 * max(sum(sizes) for sizes in settings.values()) / 1e6)
    axes.set_xlabel("gradients, in the order in which backward makes them (MB)")
    handles = [
        Patch(label="full before the last gradient", **_EARLY),
        Patch(label="full with the last gradient", **_LAST),
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=2, handlelength=1.5)
    return figure


def _count(sizes: Sequence[int]) -> str:
    thin = sum(size < sum(sizes) / 1000 for size in sizes)
    count = "1 bucket" if len(sizes) == 1 else f"{len(sizes)} buckets"
    return f"{count}, {thin} of them\ntoo thin to see" if thin else count
