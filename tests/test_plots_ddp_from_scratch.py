"""Chapter 05's figures: what is drawn, that it can be read, and that the same data gives the same bytes."""

import pytest
from matplotlib.colors import to_hex
from test_plots import assert_readable, noisy_run, written

from ddp_src.errors import DataError
from ddp_src.own_ddp_timing import Span
from ddp_src.plots import RANK_COLORS, replicas_apart, to_png, version_timeline, version_times

pytestmark = pytest.mark.filterwarnings("error")  # a glyph that the font lacks is a warning

VERSIONS = ("no sync", "naive", "flat", "bucketed", "overlapped", "torch's DDP")


def texts(figure):
    return [text.get_text() for text in written(figure)]


# --- replicas_apart


def drawn_apart(**changes):
    alone, _ = noisy_run(seed=1)
    synced, _ = noisy_run(seed=2)
    apart = {"alone_apart": [0.0, *(0.2 + i / 40 for i in range(160))], "synced_apart": [0.0] * 161}
    return replicas_apart(alone, synced, **(apart | changes)), alone, synced


def test_both_runs_are_drawn_as_they_were():
    figure, alone, synced = drawn_apart()
    left, right = figure.axes
    assert [circles.get_marker() for circles in left.lines[2:]] == ["o", "s"]  # not by colour alone
    for rank in (0, 1):
        line, circles = left.lines[rank], left.lines[2 + rank]
        assert list(line.get_ydata()) == [s.loss for s in alone[rank]]
        assert line.get_color() == RANK_COLORS[rank] == circles.get_markeredgecolor()
        losses = dict(zip(circles.get_xdata(), circles.get_ydata(), strict=True))
        assert len(losses) == 16
        assert all(synced[rank][step].loss == loss for step, loss in losses.items())
    assert list(right.lines[0].get_xdata()) == list(range(161))
    assert list(right.lines[0].get_ydata())[1:] == [0.2 + i / 40 for i in range(160)]


def test_a_distance_of_zero_lies_on_the_floor_that_says_so():
    figure, _, _ = drawn_apart()
    right = figure.axes[1]
    floor = right.get_yticks()[0]
    assert set(right.lines[1].get_ydata()) == {floor} and floor < 0.1
    assert right.lines[0].get_ydata()[0] == floor
    assert right.get_yscale() == "log"
    assert [label.get_text() for label in right.get_yticklabels()] == ["0", "0.1", "1"]


def test_a_distance_that_is_not_zero_does_not_lie_on_the_floor():
    figure, _, _ = drawn_apart(synced_apart=[0.0, *[1e-7] * 160])
    right = figure.axes[1]
    assert min(right.lines[1].get_ydata()[1:]) == pytest.approx(1e-7)
    assert right.get_yticks()[0] < 1e-7


def test_one_step_is_enough_and_none_is_refused():
    alone, _ = noisy_run(count=1)
    assert_readable(replicas_apart(alone, alone, alone_apart=[0.0, 0.3], synced_apart=[0.0, 0.0]))
    with pytest.raises(DataError, match="no step"):
        replicas_apart([[], []], alone, alone_apart=[], synced_apart=[0.0])


def test_replicas_can_be_read():
    figure, _, _ = drawn_apart()
    assert_readable(figure)
    wanted = {"rank 0", "rank 1", "no sync", "with sync", "step", "distance of the replicas, ‖w₁ − w₀‖"}
    assert wanted <= set(texts(figure))


# --- version_times


def ratios(**medians):
    return {name: [medians.get(name, 1.0) + d for d in (-0.2, 0.0, 0.3)] for name in VERSIONS}


def test_a_bar_is_the_median_of_its_rounds_and_says_its_value():
    figure = version_times(
        {"SimpleModel": ratios(naive=2.31), "SmallCNN": ratios(naive=1.42)}, against="torch's DDP"
    )
    for axes, median in zip(figure.axes, (2.31, 1.42), strict=True):
        assert [bar.get_width() for bar in axes.patches] == [1.0, median, 1.0, 1.0, 1.0, 1.0]
        assert axes.get_xlabel() == "step time / torch's DDP"
        assert axes.get_xlim()[1] > median + 0.3
    assert {"2.31", "1.42", "SimpleModel", "SmallCNN", *VERSIONS} <= set(texts(figure))
    assert_readable(figure)


@pytest.mark.parametrize("scale", [0.2, 1.0, 9.0])
def test_times_can_be_read_at_any_size(scale):
    rounds = {name: [scale * (0.5 + i / 10 + r / 8) for r in range(15)] for i, name in enumerate(VERSIONS)}
    assert_readable(
        version_times({"SimpleModel, batch 32": rounds, "SmallCNN, batch 8": rounds}, against="x")
    )


def test_one_round_has_no_spread():
    figure = version_times({"SimpleModel": {"naive": [2.0]}}, against="torch's DDP")
    assert list(figure.axes[0].lines[0].get_xdata()) == [2.0, 2.0]


# --- version_timeline

STEP = [
    Span("forward", 0.1, 4.0),
    Span("backward", 4.0, 11.0),
    Span("launch", 6.0, 6.1),
    Span("all-reduce", 6.1, 9.0),
    Span("sync", 11.0, 12.0),
    Span("update", 12.0, 12.5),
]


def test_every_span_but_the_launches_is_a_box_where_it_was():
    figure = version_timeline({"naive": STEP, "overlapped": STEP})
    (axes,) = figure.axes
    boxes = [path.get_extents() for drawn in axes.collections for path in drawn.get_paths()]
    once = [(0.1, 4.0), (4.0, 11.0), (6.1, 9.0), (11.0, 12.0), (12.0, 12.5)]
    assert [(round(box.x0, 6), round(box.x1, 6)) for box in boxes] == once * 2
    tops = [box.y0 for box in boxes]
    assert tops == pytest.approx([0.12, 0.12, 0.5, 0.12, 0.12, 1.12, 1.12, 1.5, 1.12, 1.12])
    assert [list(line.get_xdata()) for line in axes.lines] == [[11.0, 11.0]] * 2  # where backward ends


def test_the_timeline_can_be_read():
    figure = version_timeline(dict.fromkeys(("naive", "flat", "bucketed", "overlapped"), STEP))
    assert_readable(figure)
    wanted = {
        "forward",
        "backward",
        "sync",
        "update",
        "all-reduce",
        "backward ends",
        "time since the step began (ms)",
    }
    assert wanted <= set(texts(figure))
    *boxes, line = figure.legends[0].legend_handles
    assert len({(to_hex(patch.get_facecolor()), patch.get_hatch()) for patch in boxes}) == 5
    assert line.get_linestyle() == "--"


def test_the_same_data_gives_the_same_bytes():
    def all_figures():
        yield drawn_apart()[0]
        yield version_times({"SimpleModel": ratios(naive=2.0)}, against="torch's DDP")
        yield version_timeline({"naive": STEP})

    assert [to_png(f) for f in all_figures()] == [to_png(f) for f in all_figures()]
