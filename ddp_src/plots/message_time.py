"""Time of one message against its size, with the line α + S/β."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from ddp_src.plots.style import house_style, new_figure

_SIZES = {4: "4 B", 64: "64 B", 2**10: "1 KB", 2**14: "16 KB", 2**18: "256 KB", 2**22: "4 MB", 2**26: "64 MB"}


@house_style()
def message_time(sizes: Sequence[int], seconds: Sequence[float], *, alpha: float, beta: float) -> Figure:
    """Measured times (circles) and α + S/β (line), both axes logarithmic; α in s, β in bytes/s.

    The two parts of the sum are drawn alone too; they cross at S = αβ.
    """
    figure = new_figure(height=4.0)
    axes = figure.subplots()
    ends = [min(sizes), max(sizes)]
    steps = 120
    fine = [ends[0] * (ends[1] / ends[0]) ** (i / steps) for i in range(steps + 1)]
    axes.plot(fine, [1e3 * (alpha + s / beta) for s in fine], color="#0072B2", label="fit: α + S/β")
    axes.plot(ends, [1e3 * alpha] * 2, color="black", linestyle=(0, (5, 2)), linewidth=1, label="α alone")
    axes.plot(
        fine, [1e3 * s / beta for s in fine], color="black", linestyle=":", linewidth=1.3, label="S/β alone"
    )
    axes.plot(
        sizes,
        [1e3 * t for t in seconds],
        linestyle="none",
        marker="o",
        markersize=7,
        markerfacecolor="white",
        markeredgecolor="black",
        markeredgewidth=1.4,
        label="measured",
    )
    low, high = min(*seconds, alpha), max(*seconds, alpha + ends[1] / beta)
    axes.set(xscale="log", yscale="log", ylim=(1e3 * low / 3, 1e3 * high * 2))
    axes.set(xlabel="size S of the tensor", ylabel="time of one all_reduce (ms)")
    shown = {size: name for size, name in _SIZES.items() if ends[0] <= size <= ends[1]}
    axes.set_xticks(list(shown), list(shown.values()))
    axes.minorticks_off()
    axes.yaxis.set_major_formatter("{x:g}")
    figure.legend(loc="outside upper center", ncols=4, handlelength=1.8, columnspacing=1.2)
    return figure
