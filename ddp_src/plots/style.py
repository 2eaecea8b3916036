"""The look of every figure in the series: colours and lines of ranks, fonts, and PNGs that never vary."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import matplotlib.style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ddp_src.errors import CheckpointError
from ddp_src.files import whole_file

WIDTH = 7.0  # inches; at DPI about 1,000 pixels, shown by a notebook at 700
DPI = 144

# Okabe and Ito's palette for all kinds of colour vision (https://jfly.uni-koeln.de/color/), its yellow
# darkened for white paper and its black, kept for the mean of all ranks, replaced by grey.
RANK_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#A89A00", "#888888")
RANK_LINES = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)))

_HOUSE = {
    "font.family": ["DejaVu Sans"],  # comes with matplotlib: the same letters on every machine
    "font.size": 11,
    "axes.titlesize": 11,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "legend.fontsize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "hatch.linewidth": 0.8,
}


@contextmanager
def house_style() -> Iterator[None]:
    """Decorate what draws or renders with this: the reader's own matplotlibrc then changes nothing."""
    with matplotlib.style.context(["default", _HOUSE]):
        yield


class _Shown(Figure):
    """A figure that a notebook shows as the PNG that `save` would write."""

    def _ipython_display_(self) -> None:
        from IPython.display import display

        # Not _repr_png_: the inline backend, once something has activated it, overrules that and crops.
        display(
            {"image/png": to_png(self), "text/plain": repr(self)},
            metadata={"image/png": {"width": round(100 * self.get_figwidth())}},
            raw=True,
        )


@house_style()
def new_figure(*, height: float = 4.2) -> Figure:
    """An empty figure, 7 × `height` inches, made without pyplot; as a cell's last line it is shown."""
    figure = _Shown(figsize=(WIDTH, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def rank_line(rank: int) -> dict:
    """Colour and line style of a rank, the same in every figure, as keywords for `Axes.plot`."""
    return {"color": RANK_COLORS[rank % len(RANK_COLORS)], "linestyle": RANK_LINES[rank % len(RANK_LINES)]}


@house_style()
def to_png(figure: Figure) -> bytes:
    """The figure as PNG: no date and no program name in it, so that the same data gives the same bytes."""
    for _ in range(3):  # each layout starts from the last and differs less: a second call finds no change
        figure.draw_without_rendering()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    return buffer.getvalue()


def save(figure: Figure, path: str | Path) -> Path:
    """Write the figure to `path` as PNG, whole or not at all; raises CheckpointError if that fails."""
    path = Path(path)
    try:
        with whole_file(path) as file:
            file.write(to_png(figure))
    except OSError as error:
        raise CheckpointError(
            f"The figure {path} cannot be written ({error.strerror}): choose a folder with room that you may "
            "write to.",
            f"无法写入图片 {path}（{error.strerror}）：请换一个有空间、有写权限的文件夹。",
        ) from error
    return path
