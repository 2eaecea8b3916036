"""The figure "who inherits what": every fate is written in its cell, and every cost over its bar."""

from itertools import combinations

import pytest
from matplotlib.text import Text

from ddp_src.errors import DataError
from ddp_src.plots import arguments, inheritance, to_png
from ddp_src.start_methods import ABSENT, COPIED, NO_GPU, REFUSED, SHARED, Way

pytestmark = pytest.mark.filterwarnings("error")  # a glyph that the font lacks is a warning

THINGS = ["list argument", "tensor argument", "open file", "thread", "CUDA context"]


def way(name, seconds, private_mb, *fates):
    return Way(name, seconds, private_mb, dict(zip(THINGS, fates, strict=True)), 0.0)


WAYS = [
    way("fork", 0.0128, 2.4, COPIED, COPIED, SHARED, ABSENT, REFUSED),
    way("forkserver", 2.98, 294.1, COPIED, SHARED, REFUSED, ABSENT, NO_GPU),
    way("spawn", 12.4, 295.2, COPIED, SHARED, REFUSED, ABSENT, NO_GPU),
    way("ddp_src.spawn", 0.0515, 13.4, COPIED, COPIED, REFUSED, ABSENT, NO_GPU),
]


def written(axes):
    """Text by (column, row) of the cells, or by column over the bars."""
    return {tuple(round(x) for x in text.get_position()): text.get_text() for text in axes.texts}


def test_every_fate_is_written_in_the_cell_of_its_way_and_thing():
    table = inheritance(WAYS).axes[2]
    marks = {COPIED: "○", SHARED: "●", ABSENT: "–", REFUSED: "×", NO_GPU: "?"}
    assert written(table) == {
        (column, row): f"{marks[fate]} {fate}"
        for column, one in enumerate(WAYS)
        for row, fate in enumerate(one.fate.values())
    }
    assert [label.get_text() for label in table.get_yticklabels()] == THINGS


def test_the_bars_are_as_high_as_what_was_measured_and_say_it():
    time, memory, _ = inheritance(WAYS).axes
    assert [bar.get_height() for bar in time.patches] == [0.0128, 2.98, 12.4, 0.0515]
    assert [bar.get_height() for bar in memory.patches] == [2.4, 294.1, 295.2, 13.4]
    assert [text.get_text() for text in time.texts] == ["0.013", "3.0", "12", "0.051"]
    assert [text.get_text() for text in memory.texts] == ["2.4", "294", "295", "13"]
    assert [label.get_text() for label in time.get_xticklabels()] == [way.name for way in WAYS]
    assert [axes.get_ylabel() for axes in (time, memory)] == ["start\n(s)", "own memory\n(MB)"]


def test_memory_that_was_not_measured_is_said_to_be_so():
    figure = inheritance([way("spawn", 1.5, None, COPIED, SHARED, REFUSED, ABSENT, NO_GPU)])
    assert [text.get_text() for text in figure.axes[1].texts] == ["not measured"]


def test_the_same_data_gives_the_same_bytes():
    assert to_png(inheritance(WAYS)) == to_png(inheritance(WAYS))


def test_the_diagram_has_two_lists_and_one_memory():
    texts = [text.get_text() for text in arguments().findobj(Text)]
    assert [texts.count(f"rank {rank}: list [{rank}]") for rank in (0, 1)] == [1, 1]
    assert texts.count("shared memory\n2.0") == 1
    assert to_png(arguments()) == to_png(arguments())


@pytest.mark.parametrize("figure", [inheritance(WAYS), arguments()], ids=["table", "diagram"])
def test_no_text_is_cut_off_or_overlaps_another(figure):
    to_png(figure)
    texts = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip()]
    boxes = {t: t.get_window_extent() for t in texts}
    shown = {t: box for t, box in boxes.items() if box.width and _is_drawn(figure, t)}
    for text, box in shown.items():
        assert text.get_fontsize() >= 10, text.get_text()
        assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1, text.get_text()
        assert figure.bbox.y0 <= box.y0 and box.y1 <= figure.bbox.y1, text.get_text()
    for (a, box_a), (b, box_b) in combinations(shown.items(), 2):
        assert not box_a.overlaps(box_b), f"{a.get_text()!r} overlaps {b.get_text()!r}"


def _is_drawn(figure, text):
    """Axes share their columns: the ticks' labels exist on all three and are drawn over the first."""
    return not any(text in axes.get_xticklabels() for axes in figure.axes[1:])


def test_no_ways_at_all_are_refused():
    with pytest.raises(DataError, match="no way to start a rank was tried"):
        inheritance([])
