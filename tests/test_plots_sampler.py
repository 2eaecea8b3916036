"""Chapter 04's figures: what is really drawn, told apart without colour, the same bytes for the same data."""

from collections import Counter

import pytest
from matplotlib.colors import rgb_to_hsv, to_hex, to_rgb
from matplotlib.patches import FancyBboxPatch, Rectangle

from ddp_src.errors import DataError
from ddp_src.plots import RANK_COLORS, dealing, shares, to_png
from ddp_src.plots.shares import rank_fill

pytestmark = pytest.mark.filterwarnings("error")  # a glyph that the font lacks is a warning

# two ranks, two epochs, four samples: sample 1 is seen twice in epoch 0, sample 3 never in epoch 1
RANKS = [[[0, 1], [2]], [[2, 3, 1], [0, 1]]]


def cells(axes):
    """(sample, epoch) of every number on a grid, with the number."""
    return {(round(t.get_position()[0] - 0.01), t.get_position()[1], t.get_text()) for t in axes.texts}


def test_each_cell_shows_the_rank_that_saw_the_sample():
    (axes,) = shares({"a title": RANKS}, samples=4).axes
    assert cells(axes) == {
        (0, 0, "0"),
        (1, 0, "0"),
        (1, 0, "1"),
        (2, 0, "1"),
        (3, 0, "1"),
        (0, 1, "1"),
        (1, 1, "1"),
        (2, 1, "0"),
    }
    assert axes.get_title(loc="left") == "a title"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("sample (number in the data set)", "epoch")


def test_a_sample_seen_twice_is_ringed_and_no_other():
    (axes,) = shares({"": RANKS}, samples=4).axes
    rings = [p for p in axes.patches if isinstance(p, Rectangle) and not p.get_fill()]
    rings = rings or [p for p in axes.patches if p.get_facecolor()[3] == 0]
    assert [(ring.get_x(), ring.get_y(), ring.get_width()) for ring in rings] == [(0.5, -0.5, 1)]


def test_each_fill_is_that_of_its_rank():
    (axes,) = shares({"": RANKS}, samples=4).axes
    fills = Counter(to_hex(p.get_facecolor()) for p in axes.patches if p.get_facecolor()[3])
    assert fills == {to_hex(rank_fill(0)): 3, to_hex(rank_fill(1)): 5}


def test_fills_keep_the_hue_of_their_rank_and_neighbours_differ_in_grey():
    grey = [0.3 * r + 0.6 * g + 0.1 * b for r, g, b in map(rank_fill, range(3))]
    assert min(abs(a - b) for a, b in [grey[:2], grey[1:], grey[::2]]) > 0.15
    for rank in range(3):
        hue = rgb_to_hsv(to_rgb(RANK_COLORS[rank]))[0]
        assert rgb_to_hsv(rank_fill(rank))[0] == pytest.approx(hue, abs=0.02)


def test_two_panels_stand_one_above_the_other():
    figure = shares({"without": RANKS, "with": RANKS}, samples=4)
    above, below = figure.axes
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["without", "with"]
    figure.draw_without_rendering()
    assert above.get_position().y0 > below.get_position().y1
    (legend,) = figure.legends
    assert [t.get_text() for t in legend.get_texts()] == ["rank 0", "rank 1", "seen twice in this epoch"]


@pytest.mark.parametrize("panels", [{}, {"none": []}, {"no epoch": [[], []]}])
def test_nothing_to_draw_is_told(panels):
    with pytest.raises(DataError, match="no rank has finished an epoch"):
        shares(panels, samples=4)


def test_samples_are_dealt_out_in_turn_and_repeats_look_different():
    (axes,) = dealing([[4, 5, 0, 2], [1, 3, 8, 4], [7, 9, 6, 1]], samples=10).axes
    numbers = [t for t in axes.texts if t.get_text().isdigit()]
    top = [
        t.get_text() for t in sorted(numbers, key=lambda t: t.get_position()[0]) if not t.get_position()[1]
    ]
    assert top == list("417539086241")
    lanes = {}
    for t in numbers:
        x, y = t.get_position()
        if y:
            lanes.setdefault(y, []).append((x, t.get_text()))
    assert [sorted(lane) for _, lane in sorted(lanes.items(), reverse=True)] == [
        [(0, "4"), (3, "5"), (6, "0"), (9, "2")],
        [(1, "1"), (4, "3"), (7, "8"), (10, "4")],
        [(2, "7"), (5, "9"), (8, "6"), (11, "1")],
    ]
    dashed = [p for p in axes.patches if isinstance(p, FancyBboxPatch) and p.get_linestyle() != "solid"]
    assert len(dashed) == 4  # 4 and 1, on top and in their lanes
    assert "the first ones again" in [t.get_text() for t in axes.texts]
    fills = {rank: set() for rank in range(3)}
    for p in axes.patches:
        if isinstance(p, FancyBboxPatch) and p.get_y() < -0.5:
            fills[round(-1.25 - p.get_y() - p.get_height() / 2)].add(to_hex(p.get_facecolor()))
    assert fills == {rank: {to_hex(rank_fill(rank))} for rank in range(3)}  # as in the grid


def test_without_repeats_nothing_speaks_of_them():
    (axes,) = dealing([[0, 2], [1, 3]], samples=4).axes
    assert "the first ones again" not in [t.get_text() for t in axes.texts]


def test_unequal_shares_are_told_with_their_sizes():
    with pytest.raises(DataError, match="The ranks have 2, 1 samples"):
        dealing([[0, 2], [1]], samples=3)


def test_the_same_data_give_the_same_bytes():
    for draw in (lambda: shares({"": RANKS}, samples=4), lambda: dealing([[0, 2], [1, 0]], samples=3)):
        assert to_png(draw()) == to_png(draw())
