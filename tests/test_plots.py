"""The figures: what is really drawn, that it can be read, and that the same data gives the same bytes."""

import base64
import errno
import hashlib
import json
import math
import os
import random
import struct
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import nbclient
import nbformat
import pytest
from matplotlib.axis import Axis
from matplotlib.colors import to_hex, to_rgba
from matplotlib.text import Text

from ddp_src import files
from ddp_src.errors import CheckpointError, DataError
from ddp_src.plots import (
    RANK_COLORS,
    RANK_LINES,
    accuracy,
    draw_run,
    losses,
    new_figure,
    one_step,
    phases,
    rank_line,
    save,
    to_png,
)
from ddp_src.runlog import Epoch, RunLogWriter, Step

HERE = Path(__file__).resolve().parent
pytestmark = pytest.mark.filterwarnings("error")  # a glyph that the font lacks is a warning


def steps(*values, samples=128):
    return [Step(epoch=0, step=i, loss=v, samples=samples) for i, v in enumerate(values)]


def noisy_run(ranks=2, count=160, seed=0):
    """A falling loss as a real run has it, and the sample-weighted mean as the run of one process."""
    noise = random.Random(seed)
    logs = [steps(*(0.3 + 2 * math.exp(-i / 20) + noise.gauss(0, 0.06) for i in range(count)))]
    logs += [steps(*(s.loss + noise.gauss(0, 0.06) for s in logs[0])) for _ in range(ranks - 1)]
    means = [sum(s.loss for s in at) / ranks for at in zip(*logs, strict=True)]
    return logs, steps(*means, samples=128 * ranks)


def timed(data, forward, backward, update, count=20, first=1.0):
    """`count` equal steps, in seconds, after 5 that take `first` in every phase."""
    warm = [Step(0, i, 1.0, 128, first, first, first, first) for i in range(5)]
    return warm + [Step(0, 5 + i, 1.0, 128, data, forward, backward, update) for i in range(count)]


def epochs(*accuracies, samples=1000):
    return [Epoch(i, 16 * (i + 1), a, 0.5, samples) for i, a in enumerate(accuracies)]


def line(axes, label):
    (found,) = [x for x in axes.lines if x.get_label() == label]
    return found


def labels(axes):
    return [x.get_label() for x in axes.lines]


def written(figure):
    """The texts that are drawn; ticks outside the axes exist too but are not."""
    figure.draw_without_rendering()
    outside = set()
    for axis in figure.findobj(Axis):
        low, high = sorted(axis.get_view_interval())
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
            if not low <= tick.get_loc() <= high:
                outside |= {id(tick.label1), id(tick.label2)}
    return [
        t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip() and id(t) not in outside
    ]


def assert_readable(figure):
    boxes = {t: t.get_window_extent() for t in written(figure)}
    page = figure.bbox
    for text, box in boxes.items():
        assert text.get_fontsize() >= 10, text.get_text()
        assert page.x0 <= box.x0 and box.x1 <= page.x1, f"{text.get_text()!r} is cut off"
        assert page.y0 <= box.y0 and box.y1 <= page.y1, f"{text.get_text()!r} is cut off"
        words = text.get_text().replace("\n", " ")
        assert words.isprintable() and all(ord(c) < 0x2E80 for c in words)
    for (a, box_a), (b, box_b) in combinations(boxes.items(), 2):
        assert not box_a.overlaps(box_b), f"{a.get_text()!r} overlaps {b.get_text()!r}"
    for legend in figure.legends:
        box = legend.get_window_extent()
        assert page.x0 <= box.x0 and box.x1 <= page.x1


# --- the house style


def test_eight_ranks_differ_and_keep_their_look():
    looks = [rank_line(rank) for rank in range(8)]
    assert len({str(look) for look in looks}) == 8
    assert len({look["color"] for look in looks}) == 8
    assert len({str(look["linestyle"]) for look in looks[:4]}) == 4
    assert [look["color"] for look in looks[:2]] == ["#0072B2", "#D55E00"]
    assert rank_line(0)["linestyle"] == "-"
    assert rank_line(9) == {"color": RANK_COLORS[1], "linestyle": RANK_LINES[1]}


def test_rank_colours_stand_out_from_white():
    def luminance(color):
        parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgba(color)[:3]]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    assert all(1.05 / (luminance(color) + 0.05) > 2.1 for color in RANK_COLORS)


def test_the_readers_own_settings_change_nothing():
    import matplotlib

    logs, alone = noisy_run(count=20)
    usual = to_png(losses(logs, one_process=alone))
    with matplotlib.rc_context({"font.size": 30, "lines.linewidth": 9, "savefig.bbox": "tight"}):
        assert to_png(losses(logs, one_process=alone)) == usual


def test_an_empty_figure_is_white_whatever_the_reader_set():
    import matplotlib

    with matplotlib.rc_context({"figure.facecolor": "black", "figure.figsize": (1, 1)}):
        figure = new_figure(height=3)
    assert to_hex(figure.get_facecolor()) == "#ffffff"
    assert tuple(figure.get_size_inches()) == (7, 3)


# --- bytes


def chunks(png):
    at, kinds = 8, []
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at : at + 8])
        kinds.append(kind.decode())
        at += 12 + length
    return kinds


def test_the_png_says_nothing_about_when_or_by_what_it_was_made():
    logs, alone = noisy_run()
    png = to_png(losses(logs, one_process=alone))
    assert set(chunks(png)) == {"IHDR", "pHYs", "IDAT", "IEND"}
    assert struct.unpack(">I", png[16:20]) == (1008,)
    assert len(png) < 150_000


def test_drawing_a_figure_twice_gives_the_same_bytes():
    logs, alone = noisy_run()
    figure = losses(logs, one_process=alone)
    assert to_png(figure) == to_png(figure) == to_png(losses(logs, one_process=alone))


DRAW = """
import hashlib, json, sys
sys.path.insert(0, sys.argv[1])
import test_plots as t
logs, alone = t.noisy_run()
made = [t.losses(logs, one_process=alone), t.phases([t.timed(1, 2, 3, 4)]), t.accuracy(t.epochs(0.5, 0.9))]
hashes = [hashlib.sha256(t.to_png(f)).hexdigest() for f in made]
print(json.dumps([hashes, "matplotlib.pyplot" in sys.modules]))
"""


def test_two_processes_draw_the_same_bytes_without_pyplot(tmp_path):
    (tmp_path / "matplotlibrc").write_text("font.family: monospace\nsavefig.dpi: 50\nbackend: svg\n")
    outputs = []
    other = {"PYTHONHASHSEED": "2", "MATPLOTLIBRC": str(tmp_path), "TZ": "Asia/Tokyo"}
    for changes in ({"PYTHONHASHSEED": "1"}, other):
        done = subprocess.run(
            [sys.executable, "-c", DRAW, str(HERE)],
            cwd=HERE.parent,
            env={**os.environ, **changes},
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.append(json.loads(done.stdout))
    logs, alone = noisy_run()
    here = [losses(logs, one_process=alone), phases([timed(1, 2, 3, 4)]), accuracy(epochs(0.5, 0.9))]
    hashes = [hashlib.sha256(to_png(figure)).hexdigest() for figure in here]
    assert outputs == [[hashes, False], [hashes, False]]


@pytest.mark.filterwarnings("default")  # a kernel's sockets are not this module's matter
def test_a_notebook_shows_a_returned_figure_as_the_saved_png():
    show = (
        "from ddp_src.plots import accuracy\nfrom ddp_src.runlog import Epoch\n"
        "accuracy([Epoch(0, 16, 0.5, 0.5, 1000), Epoch(1, 32, 0.9, 0.5, 1000)])"
    )
    cells = [show, f"%matplotlib inline\n{show}"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(
        notebook, timeout=60, resources={"metadata": {"path": str(HERE.parent)}}
    ).execute()
    expected = base64.b64encode(to_png(accuracy(epochs(0.5, 0.9)))).decode()
    for cell in notebook.cells:
        (output,) = cell.outputs
        assert output.data["image/png"].replace("\n", "") == expected
        assert output.metadata == {"image/png": {"width": 700}}


# --- losses


def test_losses_draws_each_rank_and_the_mean_weighted_by_samples():
    figure = losses([steps(4.0, 2.0, samples=30), steps(2.0, 1.0, samples=10)])
    (axes,) = figure.axes
    assert labels(axes) == ["rank 0", "rank 1", "mean over samples"]
    assert list(line(axes, "rank 0").get_ydata()) == [4.0, 2.0]
    assert list(line(axes, "rank 1").get_ydata()) == [2.0, 1.0]
    mean = line(axes, "mean over samples")
    assert list(mean.get_ydata()) == [3.5, 1.75]
    assert list(mean.get_xdata()) == [0, 1]
    assert [line(axes, f"rank {r}").get_color() for r in (0, 1)] == ["#0072B2", "#D55E00"]
    assert [line(axes, f"rank {r}").get_linestyle() for r in (0, 1)] == ["-", "--"]
    assert mean.get_linewidth() > line(axes, "rank 0").get_linewidth()
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("step", "training loss (cross-entropy, nats)")
    assert axes.get_ylim()[0] == 0
    assert [t.get_text() for t in figure.legends[0].get_texts()] == labels(axes)
    assert axes.child_axes == []


def test_losses_uses_the_global_step():
    resumed = [Step(2, 40 + i, 1.0, 8) for i in range(3)]
    (axes,) = losses([resumed, resumed]).axes
    assert list(line(axes, "rank 0").get_xdata()) == [40, 41, 42]
    assert list(line(axes, "mean over samples").get_xdata()) == [40, 41, 42]


def test_one_process_lies_on_the_mean_as_open_circles():
    logs, alone = noisy_run()
    (axes,) = losses(logs, one_process=alone).axes
    circles = line(axes, "one process, joined batch")
    assert list(circles.get_ydata()) == [s.loss for s in alone]
    assert circles.get_marker() == "o" and circles.get_linestyle() == "None"
    assert to_hex(circles.get_markerfacecolor()) == "#ffffff"
    assert circles.get_markevery() == 8
    assert list(line(axes, "mean over samples").get_ydata()) == pytest.approx(
        circles.get_ydata(), rel=0, abs=1e-15
    )


def test_the_inset_keeps_zeros_and_marks_1e_12():
    two = [steps(1.0, 0.5, 0.25), steps(1.0, 0.5, 0.25)]
    (axes,) = losses(two, one_process=steps(1.0, 0.5 + 2**-50, 0.25)).axes
    (inset,) = axes.child_axes
    assert inset.get_title(loc="left") == "|mean − one process| (nats)"
    assert inset.get_yscale() == "log"
    points, bound = inset.lines
    assert list(points.get_ydata()) == [1e-17, 2**-50, 1e-17]
    assert list(bound.get_ydata()) == [1e-12, 1e-12]
    ticks = dict(zip(inset.get_yticks(), [t.get_text() for t in inset.get_yticklabels()], strict=True))
    assert ticks[1e-17] == "0" and ticks[1e-12] == "1e-12"
    low, high = inset.get_ylim()
    assert low < 1e-17 and high > 1e-12


def test_the_inset_of_a_wrong_mean_shows_it_above_the_bound():
    logs, alone = noisy_run(count=30)
    wrong = [Step(s.epoch, s.step, s.loss + 0.5 * (s.step % 2), s.samples) for s in alone]
    (axes,) = losses(logs, one_process=wrong).axes
    (inset,) = axes.child_axes
    assert max(inset.lines[0].get_ydata()) == pytest.approx(0.5)
    assert inset.get_ylim()[1] > 0.5
    assert "1e-12" in [t.get_text() for t in inset.get_yticklabels()]


def test_a_crashed_rank_ends_early_and_the_mean_with_it():
    (axes,) = losses([steps(3.0, 2.0, 1.0), steps(1.0)], one_process=steps(2.0, 1.5, 1.0)).axes
    assert list(line(axes, "rank 0").get_ydata()) == [3.0, 2.0, 1.0]
    assert list(line(axes, "rank 1").get_ydata()) == [1.0]
    assert list(line(axes, "mean over samples").get_ydata()) == [2.0]
    assert list(axes.child_axes[0].lines[0].get_xdata()) == [0]


def test_a_rank_that_recorded_nothing_is_left_out_and_the_others_keep_their_colour():
    (axes,) = losses([[], steps(2.0, 1.0)]).axes
    assert labels(axes) == ["rank 1"]
    assert line(axes, "rank 1").get_color() == "#D55E00"


def test_one_rank_needs_no_mean():
    (axes,) = losses([steps(2.0, 1.0)]).axes
    assert labels(axes) == ["rank 0"]


def test_a_single_step_is_visible():
    (axes,) = losses([steps(2.0), steps(1.0)]).axes
    assert [x.get_marker() for x in axes.lines] == [".", ".", "."]
    assert_readable(axes.figure)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_diverged_loss_is_a_gap(bad):
    logs, alone = noisy_run(count=30)
    logs[1] = logs[1][:20] + steps(*[bad] * 30)[20:]
    (axes,) = losses(logs, one_process=alone).axes
    assert math.isfinite(axes.get_ylim()[1])
    (inset,) = axes.child_axes
    assert all(math.isfinite(limit) for limit in inset.get_ylim())
    assert_readable(axes.figure)


def test_no_curve_runs_under_the_inset():
    logs, _ = noisy_run(count=60)
    rising = [steps(*(s.loss for s in reversed(log))) for log in logs]
    figure = losses(rising, one_process=rising[0])
    figure.draw_without_rendering()
    (axes,) = figure.axes
    covered = axes.child_axes[0].get_tightbbox()
    for curve in axes.lines:
        for point in axes.transData.transform(curve.get_xydata()):
            assert not covered.contains(*point)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8])
def test_losses_can_be_read_with_any_number_of_ranks(count):
    logs, alone = noisy_run(ranks=count)
    figure = losses(logs, one_process=alone, title=f"SimpleModel on {count} ranks")
    assert_readable(figure)
    assert "SimpleModel on" in " ".join(t.get_text() for t in written(figure))
    assert len(to_png(figure)) < 150_000


def test_the_legend_of_many_ranks_takes_no_room_from_the_curves():
    heights = []
    for count in (2, 8):
        figure = losses(noisy_run(ranks=count, count=5)[0])
        figure.draw_without_rendering()
        heights.append(figure.axes[0].get_window_extent().height)
    assert heights[1] == pytest.approx(heights[0], rel=0.05)


@pytest.mark.parametrize("size", [0, 2**-55, 2**-52, 1e-13, 1e-9, 1e-7, 1e-5, 0.1, 1e3])
def test_the_inset_can_be_read_whatever_the_differences(size):
    alone = steps(1.0, 1.0 + size, 1.0 + size / 2)
    (axes,) = losses([steps(1.0, 1.0, 1.0)], one_process=alone).axes
    (inset,) = axes.child_axes
    ticks = [t.get_text() for t in inset.get_yticklabels()]
    assert ticks[0] == "0" and "1e-12" in ticks and 2 <= len(ticks) <= 6
    assert_readable(axes.figure)


def test_a_run_of_one_process_that_ended_early():
    (axes,) = losses([steps(3.0, 2.0, 1.0)], one_process=steps(3.0, 2.0)).axes
    assert list(axes.child_axes[0].lines[0].get_xdata()) == [0, 1]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 20, 21, 1000])
def test_losses_can_be_read_with_any_number_of_steps(count):
    logs, alone = noisy_run(count=count)
    figure = losses(logs, one_process=alone)
    assert_readable(figure)
    ticks = [t.get_text() for t in figure.axes[0].get_xticklabels()]
    assert all(tick.lstrip("−").isdigit() for tick in ticks)


@pytest.mark.parametrize("ranks", [[], [[]], [[], []]])
def test_losses_of_nothing_says_what_to_do(ranks):
    with pytest.raises(DataError) as caught:
        losses(ranks)
    assert caught.value.en == (
        "There is no loss to draw because no rank has recorded a step: train for a step or more first."
    )
    assert caught.value.zh == "没有损失可画，因为没有任何 rank 记录过训练步：请先至少训练一步。"


# --- phases


def test_phases_stacks_medians_in_ms_without_the_first_steps():
    figure = phases([timed(0.001, 0.002, 0.004, 0.003), timed(0.002, 0.002, 0.003, 0.003)])
    (axes,) = figure.axes
    bars = {c.get_label(): [(b.get_x(), b.get_width()) for b in c] for c in axes.containers}
    assert list(bars) == ["data", "forward", "backward with all-reduce", "update"]
    assert bars["data"] == [(0, pytest.approx(1)), (0, pytest.approx(2))]
    assert bars["forward"] == [(pytest.approx(1), pytest.approx(2)), (pytest.approx(2), pytest.approx(2))]
    assert bars["backward with all-reduce"][0] == (pytest.approx(3), pytest.approx(4))
    assert bars["update"] == [(pytest.approx(7), pytest.approx(3)), (pytest.approx(7), pytest.approx(3))]
    assert [t.get_text() for t in axes.get_yticklabels()] == ["rank 0", "rank 1"]
    assert axes.yaxis.get_inverted()
    assert axes.get_xlabel() == "time per step (ms, median)"
    assert [t.get_text() for t in figure.legends[0].get_texts()] == list(bars)


def test_phases_differ_by_hatch_and_not_by_colour_alone():
    (axes,) = phases([timed(1, 2, 3, 4)]).axes
    assert len({c[0].get_hatch() for c in axes.containers}) == 4
    assert len({c[0].get_facecolor() for c in axes.containers}) == 4


def test_one_slow_step_does_not_move_the_bars():
    slow = [*timed(0.001, 0.001, 0.001, 0.001), Step(0, 25, 1.0, 128, 9.0, 9.0, 9.0, 9.0)]
    (axes,) = phases([slow]).axes
    assert [c[0].get_width() for c in axes.containers] == pytest.approx([1, 1, 1, 1])


def test_phases_of_a_short_run_leave_out_its_first_half():
    few = [Step(0, i, 1.0, 128, t, t, t, t) for i, t in enumerate([9.0, 9.0, 0.002, 0.002])]
    (axes,) = phases([few, few[2:3]]).axes
    assert [b.get_width() for b in axes.containers[0]] == pytest.approx([2, 2])


def test_values_stand_on_the_bars_that_have_room():
    figure = phases([timed(0.0061, 0.00004, 0.0123, 0.0019), timed(0.0061, 0.004, 0.0123, 0.0019)])
    (axes,) = figure.axes
    assert [t.get_text() for t in axes.texts] == ["6.1", "6.1", "4.0", "12", "12", "1.9", "1.9"]
    figure.draw_without_rendering()
    bars = [bar.get_window_extent() for container in axes.containers for bar in container]
    for text in axes.texts:
        box = text.get_window_extent()
        assert any(bar.x0 <= box.x0 and box.x1 <= bar.x1 for bar in bars)


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_phases_can_be_read_with_any_number_of_ranks(count):
    assert_readable(phases([timed(0.006, 0.001 * (1 + r), 0.006, 0.001) for r in range(count)]))


def test_phases_without_times_or_steps():
    assert_readable(phases([steps(1.0, 1.0), []]))
    with pytest.raises(DataError) as caught:
        phases([[]])
    assert caught.value.en == (
        "There are no times to draw because no rank has recorded a step: train for a step or more first."
    )
    assert caught.value.zh == "没有耗时可画，因为没有任何 rank 记录过训练步：请先至少训练一步。"


# --- accuracy


def test_accuracy_in_percent_with_its_standard_error():
    figure = accuracy(epochs(0.5, 0.9, samples=100))
    (axes,) = figure.axes
    (curve,) = axes.lines
    assert list(curve.get_xdata()) == [1, 2]
    assert list(curve.get_ydata()) == [50, 90]
    (band,) = axes.collections
    corners = {(round(x, 9), round(y, 9)) for x, y in band.get_paths()[0].vertices}
    assert corners == {(1, 45), (1, 55), (2, 87), (2, 93)}
    assert [t.get_text() for t in axes.texts] == ["90.0 ± 3.0 %"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("epochs done", "test accuracy (%)")
    assert_readable(figure)


@pytest.mark.parametrize("values", [(0.1,), (1.0,), (0.0, 1.0), tuple(0.8 + i / 1000 for i in range(100))])
def test_accuracy_can_be_read_with_any_number_of_epochs(values):
    figure = accuracy(epochs(*values))
    assert_readable(figure)
    assert all(t.get_text().lstrip("−").isdigit() for t in figure.axes[0].get_xticklabels())


def test_accuracy_of_nothing_says_what_to_do():
    with pytest.raises(DataError) as caught:
        accuracy([])
    assert caught.value.en == (
        "There is no accuracy to draw because no epoch was evaluated: train for an epoch or more first."
    )
    assert caught.value.zh == "没有准确率可画，因为还没有评估过任何一轮：请先至少训练一轮。"


# --- files


def test_save_writes_the_figure_and_nothing_else(tmp_path):
    figure = accuracy(epochs(0.5, 0.9))
    assert save(figure, str(tmp_path / "图 1.png")) == tmp_path / "图 1.png"
    assert [p.name for p in tmp_path.iterdir()] == ["图 1.png"]
    assert (tmp_path / "图 1.png").read_bytes() == to_png(figure)


def test_save_on_a_full_disk_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.png"
    path.write_bytes(b"old")

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(CheckpointError) as caught:
        save(accuracy(epochs(0.5)), path)
    assert caught.value.en == (
        f"The figure {path} cannot be written (No space left on device): choose a folder with room that you "
        "may write to."
    )
    assert caught.value.zh == (
        f"无法写入图片 {path}（No space left on device）：请换一个有空间、有写权限的文件夹。"
    )
    assert [p.name for p in tmp_path.iterdir()] == ["a.png"]
    assert path.read_bytes() == b"old"


def test_save_where_no_file_can_be(tmp_path):
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(CheckpointError, match="Is a directory"):
        save(new_figure(), tmp_path / "folder.png")
    with pytest.raises(CheckpointError, match="No such file or directory"):
        save(new_figure(), tmp_path / "none" / "a.png")
    assert [p.name for p in tmp_path.iterdir()] == ["folder.png"]


def write_log(folder, rank, records):
    with RunLogWriter(folder, rank) as log:
        for record in records:
            log.write(record)


def test_draw_run_before_and_after_the_first_epoch(tmp_path):
    runs = [timed(0.001, 0.002, 0.003, 0.004), timed(0.002, 0.002, 0.003, 0.004)]
    for rank, records in enumerate(runs):
        write_log(tmp_path, rank, records)
    assert draw_run(str(tmp_path)) == [tmp_path / "loss.png", tmp_path / "phases.png"]
    assert (tmp_path / "loss.png").read_bytes() == to_png(losses(runs))
    assert (tmp_path / "phases.png").read_bytes() == to_png(phases(runs))

    done = epochs(0.8, 0.9)
    write_log(tmp_path, 0, [*runs[0], done[0]])  # rank 0 died before the second evaluation
    write_log(tmp_path, 1, [*runs[1], *done])
    assert [p.name for p in draw_run(tmp_path)] == ["loss.png", "phases.png", "accuracy.png"]
    assert (tmp_path / "accuracy.png").read_bytes() == to_png(accuracy(done))
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "accuracy.png",
        "loss.png",
        "phases.png",
        "rank0.jsonl",
        "rank1.jsonl",
    ]


def test_draw_run_of_a_folder_without_steps(tmp_path):
    with pytest.raises(CheckpointError) as caught:
        draw_run(tmp_path)
    assert caught.value.en == (
        f"Nothing can be drawn in {tmp_path}, its rank logs hold no training step: name the folder of a run "
        "that has trained."
    )
    assert caught.value.zh == (
        f"{tmp_path} 里没有可画的内容，各 rank 的日志中没有训练步：请指定一个已经训练过的运行文件夹。"
    )
    assert list(tmp_path.iterdir()) == []


# --- the diagram of a step


def test_the_diagram_of_a_step_tells_equal_from_unequal():
    figure = one_step()
    assert_readable(figure)
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert [t for t in texts if t in ("=", "≠")] == ["=", "≠", "≠", "="]
    assert {"own samples\nloss L0", "own samples\nloss L1", "backward\ngradient g0"} <= set(texts)
    assert texts.count("all-reduce\ng =\n(g0 + g1) / 2") == 1  # one for both ranks
