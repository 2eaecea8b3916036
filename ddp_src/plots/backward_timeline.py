"""Backward passes as timelines: each layer's gradient as a block, the all-reduces below it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ddp_src.errors import DataError
from ddp_src.plots.style import house_style, new_figure
from ddp_src.profiler_trace import Span, collectives, layer_gradients

_GRADIENT = {"facecolor": "#FFD9A0", "edgecolor": "black", "linewidth": 0.8}
_ALL_REDUCE = {"facecolor": "#8CC8EC", "edgecolor": "black", "linewidth": 0.8, "hatch": "///"}
_BLOCK = 0.72  # height of a block, where a row is 1
_LETTER = 0.0145  # width of a letter, as a fraction of the axes


@house_style()
def backward_timeline(passes: Mapping[str, Sequence[Span]]) -> Figure:
    """One panel per backward pass, all on one axis of ms since the first gradient was begun.

    `passes` gives under each title the spans of a backward pass. A dashed line stands where the last
    gradient is done. Up to three all-reduces carry their size, 4 bytes per number; all share one row unless
    they run at the same time. Raises DataError if a pass has no gradient or no all-reduce.
    """
    moved = {title: _from_first_gradient(title, spans) for title, spans in passes.items()}
    rows = [1 + len(_rows(sent)) for _, sent in moved.values()]
    ends = [span.end for _, sent in moved.values() for span in sent]
    dones = [gradients[-1].end for gradients, _ in moved.values()]
    figure = new_figure(height=0.75 + sum(0.42 * n + 0.5 for n in rows))
    panels = figure.subplots(len(rows), sharex=True, squeeze=False, height_ratios=[n + 0.4 for n in rows])[
        :, 0
    ]
    for axes, (title, (gradients, sent)) in zip(panels, moved.items(), strict=True):
        axes.set_xlim(0, max(1.02 * max(ends), max(dones) / 0.74))
        axes.set_title(title, loc="left")
        _draw_gradients(axes, gradients)
        _draw_all_reduces(axes, sent)
    panels[-1].set_xlabel("time since backward began (ms)")
    return figure


def _from_first_gradient(title: str, spans: Sequence[Span]) -> tuple[list[Span], list[Span]]:
    gradients = layer_gradients(spans)
    sent = [span for span in collectives(spans) if span.name == "all_reduce"]
    if not gradients or not sent:
        raise DataError(
            f"{title!r} cannot be drawn: it has {len(gradients)} layers' gradients and {len(sent)} Gloo "
            "all-reduces; profile the backward pass of linear layers under DDP with backend gloo.",
            f"无法画出 {title!r}：其中有 {len(gradients)} 层的梯度、{len(sent)} 次 Gloo all-reduce；"
            "请用 gloo 后端，在 DDP 下对由线性层组成的模型的反向传播做性能分析。",
        )
    zero = gradients[0].start
    moved = [
        [Span(s.name, s.start - zero, s.end - zero, s.numbers) for s in group] for group in (gradients, sent)
    ]
    return moved[0], moved[1]


def _draw_gradients(axes: Axes, gradients: Sequence[Span]) -> None:
    for span in gradients:
        _block(axes, span, 0, _GRADIENT)
    done = gradients[-1].end
    axes.axvline(done, color="black", linewidth=1.2, linestyle=(0, (4, 2)), zorder=0)
    axes.annotate(
        "last gradient done", (done, 0), xytext=(5, 0), textcoords="offset points", va="center", fontsize=10
    )


def _draw_all_reduces(axes: Axes, sent: Sequence[Span]) -> None:
    rows = _rows(sent)
    for row, spans in enumerate(rows, 1):
        for span in spans:
            _block(axes, span, row, _ALL_REDUCE)
            if len(sent) <= 3:
                _write_size(axes, span, row)
    axes.set_yticks([0, (1 + len(rows)) / 2], ["layer gradients", "all-reduce"])
    axes.set_ylim(len(rows) + 0.5, -0.55)
    axes.tick_params("y", length=0)


def _write_size(axes: Axes, span: Span, row: int) -> None:
    """Write the size into the block, or behind it where the block is too short."""
    text = f"{4 * span.numbers / 1e6:.3g} MB"
    low, high = axes.get_xlim()
    if (span.end - span.start) / (high - low) > (len(text) + 1) * _LETTER:
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
        middle = (span.start + span.end) / 2
        axes.text(middle, row, text, ha="center", va="center", fontsize=10, bbox=box)
    else:
        axes.annotate(
            text, (span.end, row), xytext=(4, 0), textcoords="offset points", va="center", fontsize=10
        )


def _rows(spans: Sequence[Span]) -> list[list[Span]]:
    """Each span in the first row that is free when it starts."""
    rows: list[list[Span]] = []
    for span in spans:
        free = next((row for row in rows if row[-1].end <= span.start), None)
        if free is None:
            rows.append([span])
        else:
            free.append(span)
    return rows


def _block(axes: Axes, span: Span, row: int, look: dict) -> None:
    axes.broken_barh([(span.start, span.end - span.start)], (row - _BLOCK / 2, _BLOCK), **look)
