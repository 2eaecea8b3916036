"""Gradients as images: what each part of a batch says, what becomes of the parts, and what should."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from torch import Tensor

from ddp_src.plots.style import house_style, new_figure, rank_line

# Dark is negative, bright positive: the order survives without colour, and grey in the middle is zero.
_COLORS = "cividis"


@dataclass(frozen=True)
class Joined:
    """Two ranks' own gradients, the one made of both, and the gradient of the whole batch, as vectors."""

    name: str
    parts: Sequence[Tensor]
    joined: Tensor
    whole: Tensor

    @property
    def off(self) -> float:
        """The largest difference from the whole batch's gradient anywhere in the model."""
        return (self.joined - self.whole).abs().max().item()


@house_style()
def gradient_of_halves(
    samples: Sequence[Tensor], halves: Joined, *, picture: Callable[[Tensor], Tensor]
) -> Figure:
    """Each sample's gradient in a frame of its half's look; below, both halves' means, joined, and the whole.

    `picture` takes from a gradient the part that is drawn, [28, 28].
    """
    figure = new_figure(height=3.6)
    grid = figure.add_gridspec(3, 1, height_ratios=(1, 1.7, 0.12))
    each = grid[0].subgridspec(1, len(samples)).subplots()
    below = grid[1].subgridspec(1, 5).subplots()
    count = len(samples) // 2
    _images(each, [picture(g) for g in samples], [f"g{i}" for i in range(len(samples))])
    for i, axes in enumerate(each):
        _frame(axes, rank=i // count)
    first, second = f"mean g0 … g{count - 1}", f"mean g{count} … g{2 * count - 1}"
    _row(below, halves, picture, [first, second, "mean of both", f"whole batch, {2 * count}", "difference"])
    _color_bar(figure, figure.add_subplot(grid[2]), of="the largest entry drawn in the row")
    return figure


@house_style()
def joined_gradients(rows: Sequence[Joined], *, picture: Callable[[Tensor], Tensor]) -> Figure:
    """One row per way to join two gradients: both, the result, the whole batch's, and the difference.

    The result's largest entry drawn sets a row's scale; what goes beyond gets the colour at its end.
    """
    figure = new_figure(height=0.9 + 1.5 * len(rows))
    grid = figure.add_gridspec(len(rows) + 1, 5, height_ratios=[*[1] * len(rows), 0.08])
    for number, row in enumerate(rows):
        axes = [figure.add_subplot(grid[number, column]) for column in range(5)]
        titles = ["rank 0", "rank 1", "after DDP", "whole batch", "difference"] if number == 0 else [""] * 5
        _row(axes, row, picture, titles, limit=picture(row.joined).abs().max().item())
        axes[0].set_ylabel(row.name)
    _color_bar(figure, figure.add_subplot(grid[-1, :]), of="the largest entry drawn after DDP", beyond="both")
    return figure


def _row(
    axes: Sequence[Axes],
    row: Joined,
    picture: Callable[[Tensor], Tensor],
    titles: Sequence[str],
    limit: float | None = None,
) -> None:
    gradients = [*row.parts, row.joined, row.whole, row.joined - row.whole]
    _images(axes, [picture(g) for g in gradients], titles, limit)
    for rank in (0, 1):
        _frame(axes[rank], rank)
    axes[3].set_xlabel(f"max {row.whole.abs().max().item():.2f}")
    small = f"{row.off:.0e}" if row.off else "0"
    axes[4].set_xlabel(f"max {row.off:.2f}" if row.off >= 0.01 else f"max {small}")


def _images(
    axes: Sequence[Axes], images: Sequence[Tensor], titles: Sequence[str], limit: float | None = None
) -> None:
    """Draw all with one scale, from −`limit` to `limit`, by default their largest entry."""
    limit = limit or max(image.abs().max().item() for image in images)
    for ax, image, title in zip(axes, images, titles, strict=True):
        ax.imshow(image.numpy(), cmap=_COLORS, vmin=-limit, vmax=limit, interpolation="nearest")
        ax.set_title(title)
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(False)


def _frame(axes: Axes, rank: int) -> None:
    axes.spines[:].set(visible=True, linewidth=2, **rank_line(rank))


def _color_bar(figure: Figure, axes: Axes, *, of: str, beyond: str = "neither") -> None:
    look = {"orientation": "horizontal", "extend": beyond, "extendfrac": 0.03}
    bar = figure.colorbar(ScalarMappable(Normalize(-1, 1), _COLORS), cax=axes, **look)
    bar.set_ticks([-1, 0, 1])
    bar.set_label(f"gradient (fraction of {of})")
