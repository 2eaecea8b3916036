"""Chapter 03's figures: what is drawn is what the ranks held."""

from dataclasses import dataclass, field

import pytest
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

from ddp_src.errors import DataError
from ddp_src.plots import RANK_COLORS, collectives, message_time, ring, to_png
from ddp_src.plots.cells import origins, pale

pytestmark = pytest.mark.filterwarnings("error")  # a glyph that the font lacks is a warning


@dataclass
class Held:
    before: list = field(default_factory=list)
    after: list = field(default_factory=list)


@dataclass
class Waited:
    came: float
    left: float


def numbers(axes):
    """The numbers in the cells from left to right, then from top to bottom."""
    found = [(x.get_position(), x.get_text()) for x in axes.texts if x.get_text().isdigit()]
    return [text for (_, _), text in sorted(found, key=lambda f: (f[0][0], -f[0][1]))]


def rectangles(axes, **wanted):
    return [
        p
        for p in axes.patches
        if isinstance(p, Rectangle) and all(getattr(p, k)() == v for k, v in wanted.items())
    ]


def reduced():
    return [
        {"reduce": Held([1], [111])},
        {"reduce": Held([10], [110])},
        {"reduce": Held([100], [100])},
    ]


@pytest.mark.parametrize(
    ("number", "ranks"), [(1, [0]), (30, [1]), (110, [1, 2]), (111, [0, 1, 2]), (1001, [0, 3]), (0, [])]
)
def test_the_digits_of_a_number_tell_its_origins(number, ranks):
    assert origins(number) == ranks


def test_a_pale_colour_is_the_ranks_own_mixed_with_white():
    assert pale(0) == pytest.approx([0.45 * c + 0.55 for c in to_rgb(RANK_COLORS[0])])


def test_every_number_is_drawn_where_it_was():
    (axes,) = collectives(reduced(), [["reduce"]]).axes
    assert numbers(axes) == ["1", "10", "100", "111", "110", "100"]


def test_cells_have_the_colours_of_their_origins():
    (axes,) = collectives(reduced(), [["reduce"]]).axes
    fills = {p.get_facecolor()[:3]: 0 for p in axes.patches}
    for patch in axes.patches:
        fills[patch.get_facecolor()[:3]] += patch.get_width()
    # rank 0: its own cell and a third of 111; rank 2: also half of 110 and all of 100
    assert fills[pale(0)] == pytest.approx(1 + 1 / 3)
    assert fills[pale(1)] == pytest.approx(1 + 1 / 3 + 1 / 2)
    assert fills[pale(2)] == pytest.approx(1 + 1 / 3 + 1 / 2 + 1)


def test_what_is_not_promised_is_hatched_and_named_in_the_legend():
    figure = collectives(reduced(), [["reduce"]])
    assert [p.get_x() for p in rectangles(figure.axes[0], get_hatch="////")] == [5, 6]  # after: ranks 1, 2
    assert not any(text.get_bbox_patch() for text in figure.axes[0].texts)  # no box over the colours
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["from rank 0", "from rank 1", "from rank 2", "not promised"]
    kept = collectives([{"all_reduce": Held([1], [11])}, {"all_reduce": Held([10], [11])}], [["all_reduce"]])
    assert rectangles(kept.axes[0], get_hatch="////") == []
    assert len(kept.legends[0].get_texts()) == 2


def test_a_list_stands_as_a_column_and_nothing_as_a_dash():
    ranks = [{"scatter": Held([1, 2], [1])}, {"scatter": Held([], [2])}]
    (axes,) = collectives(ranks, [["scatter"]]).axes
    assert numbers(axes) == ["1", "2", "1", "2"]
    assert [t.get_text() for t in axes.texts].count("–") == 1


def test_a_wait_is_a_line_from_coming_to_going_on_in_ms():
    ranks = [{"barrier": Waited(5.0, 5.08)}, {"barrier": Waited(5.04, 5.09)}]
    figure = collectives(ranks, [["barrier"]])
    lines = [list(line.get_xdata()) for line in figure.axes[0].lines if len(line.get_xdata()) == 2]
    assert lines[0] == pytest.approx([0, 80]) and lines[1] == pytest.approx([40, 90])
    assert not figure.legends  # no cells, no colours to explain


def test_a_name_without_a_record_is_refused():
    with pytest.raises(DataError) as caught:
        collectives(reduced(), [["broadcast"]])
    assert caught.value.en == "There is no record of 'broadcast' on every rank: name one of reduce."


def ring_of_two():
    return [[[1, 1], [1, 11], [11, 11]], [[10, 10], [11, 10], [11, 11]]]


def test_every_step_of_the_ring_is_a_frame_and_the_last_is_all_reduce():
    figure = ring(ring_of_two(), total=[[11, 11], [11, 11]])
    shown = [axes.get_title(loc="left") for axes in figure.axes]
    assert shown[:4] == ["start", "step 1: add", "step 2: copy", "all_reduce"]
    assert numbers(figure.axes[1]) == ["1", "11", "11", "10"]


def test_a_thick_frame_marks_what_a_step_changed():
    figure = ring(ring_of_two(), total=[[11, 11], [11, 11]])
    thick = [[p.get_xy() for p in rectangles(axes, get_linewidth=2.4)] for axes in figure.axes]
    assert thick[0] == [] and thick[3] == []
    assert [x for x, _ in thick[1]] == [0, 1]
    assert thick[1][0][1] < thick[1][1][1]  # on rank 0 the lower chunk, on rank 1 the upper


def test_times_and_the_line_through_them():
    sizes = [4, 4096, 2**20]
    figure = message_time(sizes, [1e-4, 1e-4, 1.1e-3], alpha=1e-4, beta=2**20 / 1e-3)
    (axes,) = figure.axes
    by_label = {line.get_label(): line for line in axes.lines}
    assert list(by_label["measured"].get_ydata()) == pytest.approx([0.1, 0.1, 1.1])
    assert by_label["fit: α + S/β"].get_ydata()[-1] == pytest.approx(1.1)
    assert list(by_label["α alone"].get_ydata()) == pytest.approx([0.1, 0.1])
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.get_xlabel() == "size S of the tensor" and "(ms)" in axes.get_ylabel()


@pytest.mark.parametrize(
    "draw",
    [
        lambda: collectives(reduced(), [["reduce"]]),
        lambda: ring(ring_of_two(), total=[[11, 11], [11, 11]]),
        lambda: message_time([4, 64, 2**20], [1e-4, 1e-4, 1e-3], alpha=1e-4, beta=1e9),
    ],
    ids=["collectives", "ring", "message_time"],
)
def test_the_same_data_gives_the_same_bytes(draw):
    assert to_png(draw()) == to_png(draw())
