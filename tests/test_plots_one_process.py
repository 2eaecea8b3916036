"""Chapter 01's figures: what is drawn, that it can be read, and that the same data gives the same bytes."""

import pytest
import torch
from test_plots import assert_readable, written

from ddp_src import plots
from ddp_src.errors import DataError
from ddp_src.runlog import Step

pytestmark = pytest.mark.filterwarnings("error")  # a glyph that the font lacks is a warning


def step(data, forward, backward, update):
    """A step with these times in ms."""
    return Step(0, 9, 1.0, 128, *(ms / 1e3 for ms in (data, forward, backward, update)))


FEEDS = {
    "PIL per sample": step(7.2, 0.3, 0.4, 0.6),
    "tensor per sample": step(1.7, 0.3, 0.4, 0.6),
    "tensor per batch": step(0.2, 0.3, 0.4, 0.6),
}


def bars(figure):
    """(left, right) of each bar in ms, by phase, from the top row down."""
    (axes,) = figure.axes
    return {
        group.get_label(): [(round(b.get_x(), 9), round(b.get_x() + b.get_width(), 9)) for b in group]
        for group in axes.containers
    }


def test_phases_stand_end_to_end_in_ms():
    assert bars(plots.step_times(FEEDS)) == {
        "data": [(0, 7.2), (0, 1.7), (0, 0.2)],
        "forward": [(7.2, 7.5), (1.7, 2.0), (0.2, 0.5)],
        "backward": [(7.5, 7.9), (2.0, 2.4), (0.5, 0.9)],
        "update": [(7.9, 8.5), (2.4, 3.0), (0.9, 1.5)],
    }


def test_the_first_phase_is_the_chosen_one_and_its_share_is_written():
    figure = plots.step_times({128: step(1, 2, 2, 5)}, first="update", ylabel="batch size (samples)")
    assert bars(figure) == {"update": [(0, 5)], "data": [(5, 6)], "forward": [(6, 8)], "backward": [(8, 10)]}
    texts = [text.get_text() for text in written(figure)]
    assert "10.0 ms, 50 % update" in texts
    assert {"128", "batch size (samples)", "time per step (ms, median)"} <= set(texts)


@pytest.mark.parametrize("scale", [0.01, 1, 50])
def test_step_times_can_be_read(scale):
    scaled = {
        name: step(*(1e3 * scale * t for t in (s.data, s.forward, s.backward, s.update)))
        for name, s in FEEDS.items()
    }
    figure = plots.step_times(scaled)
    assert_readable(figure)
    assert "85 % data" in "".join(text.get_text() for text in written(figure))


def test_no_step_is_refused():
    with pytest.raises(DataError) as caught:
        plots.step_times({})
    assert caught.value.en.startswith("There are no times to draw")


def joined(name="4 + 4\nmean_loss", off=0.0):
    a, b = torch.arange(100.0), -2 * torch.arange(100.0)
    whole = (a + b) / 2
    return plots.Joined(name, [a, b], whole + off, whole)


def square(gradient):
    return gradient.view(10, 10)


def drawn(figure):
    return [axes.images[0].get_array().data.tolist() for axes in figure.axes if axes.images]


def scales(figure):
    return {axes.images[0].get_clim() for axes in figure.axes if axes.images}


def test_off_is_the_largest_difference():
    whole = torch.tensor([1.0, 2.0])
    assert plots.Joined("", [], torch.tensor([1.25, 1.0]), whole).off == 1.0


def test_halves_are_drawn_below_their_samples():
    samples = [torch.full((100,), float(i)) for i in range(8)]
    halves = joined()
    figure = plots.gradient_of_halves(samples, halves, picture=square)
    wanted = [*samples, *halves.parts, halves.joined, halves.whole, halves.joined - halves.whole]
    assert drawn(figure) == [square(gradient).tolist() for gradient in wanted]
    texts = [text.get_text() for text in written(figure)]
    assert texts[:8] == [f"g{i}" for i in range(8)]
    assert {"mean g0 … g3", "mean g4 … g7", "max 49.50", "max 0"} <= set(texts)
    colors = [axes.spines["left"].get_edgecolor() for axes in figure.axes[:10]]
    assert colors[0] == colors[3] == colors[8] != colors[4] == colors[7] == colors[9]
    assert_readable(figure)


def test_each_row_has_its_parts_result_whole_and_difference():
    rows = [joined("4 + 1\nmean_loss", off=3.0), joined("4 + 1\nweighed_by_count", off=1e-5)]
    figure = plots.joined_gradients(rows, picture=square)
    wanted = [[*row.parts, row.joined, row.whole, row.joined - row.whole] for row in rows]
    assert drawn(figure) == [square(gradient).tolist() for row in wanted for gradient in row]
    texts = [text.get_text() for text in written(figure)]
    assert texts.count("difference") == 1
    assert {"rank 0", "rank 1", "after DDP", "whole batch", "4 + 1\nmean_loss"} <= set(texts)
    assert [text for text in texts if text.startswith("max ")] == [
        "max 49.50",
        "max 3.00",
        "max 49.50",
        "max 1e-05",
    ]
    assert_readable(figure)


def test_a_row_has_one_scale_about_zero_and_the_same_bytes_each_time():
    figure = plots.gradient_of_halves([torch.full((100,), 3.0)] * 8, joined(), picture=square)
    assert scales(figure) == {(-3.0, 3.0), (-198.0, 198.0)}  # the largest entries of the two rows
    figure = plots.joined_gradients([joined()], picture=square)
    assert scales(figure) == {(-49.5, 49.5)}  # the largest entry of the third image
    assert plots.to_png(figure) == plots.to_png(plots.joined_gradients([joined()], picture=square))
