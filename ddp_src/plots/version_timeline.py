"""One step of several versions on one time axis: the phases of the step, and the all-reduces below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ddp_src.plots.style import house_style, new_figure

_LOOKS = {
    "forward": {"facecolor": "#E8E8E8"},
    "backward": {"facecolor": "#56B4E9"},
    "sync": {"facecolor": "white", "hatch": "xxx"},
    "update": {"facecolor": "#888888"},
    "all-reduce": {"facecolor": "#D55E00"},
}
_END = {"color": "black", "linestyle": (0, (3, 2)), "linewidth": 1}


class _Span(Protocol):
    name: str
    start: float
    end: float


@house_style()
def version_timeline(versions: Mapping[str, Sequence[_Span]]) -> Figure:
    """Two lanes for each version: forward, backward, sync and update, and under them its all-reduces.

    A dashed line marks where backward ends.

    Spans are in ms since the step began; those with another name than these five are not drawn.
    """
    figure = new_figure(height=1.5 + 0.85 * len(versions))
    axes = figure.subplots()
    for row, spans in enumerate(versions.values()):
        _lanes(axes, row, spans)
    axes.set_yticks([row + 0.5 for row in range(len(versions))], list(versions))
    axes.set_ylim(len(versions) + 0.05, -0.05)
    axes.set_xlim(0, None)
    axes.set_xlabel("time since the step began (ms)")
    axes.tick_params(axis="y", length=0)
    keys = [Patch(edgecolor="black", linewidth=0.6, label=name, **look) for name, look in _LOOKS.items()]
    keys.append(Line2D([], [], label="backward ends", **_END))
    figure.legend(handles=keys, loc="outside upper center", ncols=6, columnspacing=0.8, handlelength=1.3)
    return figure


def _lanes(axes: Axes, row: int, spans: Sequence[_Span]) -> None:
    for span in spans:
        if span.name in _LOOKS:
            top, height = (0.5, 0.34) if span.name == "all-reduce" else (0.12, 0.34)
            axes.broken_barh(
                [(span.start, span.end - span.start)],
                (row + top, height),
                edgecolor="black",
                linewidth=0.6,
                **_LOOKS[span.name],
            )
    backward = next((span for span in spans if span.name == "backward"), None)
    if backward:
        axes.plot([backward.end] * 2, [row + 0.04, row + 0.92], **_END)
