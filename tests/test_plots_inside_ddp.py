"""Chapter 06's figures and the reading of profiler traces, on spans and events written by hand."""

import json

import pytest
from test_plots import assert_readable, written

from ddp_src.errors import DataError
from ddp_src.plots import backward_timeline, bucket_map, to_png
from ddp_src.profiler_trace import Span, collectives, in_phase, layer_gradients, overlap, read_spans, stretch

pytestmark = pytest.mark.filterwarnings("error")
GRADIENT = "autograd::engine::evaluate_function: AddmmBackward0"


def gradients(*starts):
    return [Span(GRADIENT, start, start + 1.0) for start in starts]


def all_reduce(start, end, numbers=250_000):
    return Span("gloo:all_reduce", start, end, numbers)


LATE = [*gradients(10, 11.5, 13), all_reduce(14.5, 20, 3_151_872)]
EARLY = [*gradients(0, 1.5, 3), all_reduce(1, 2.5), all_reduce(2, 2.9), all_reduce(3, 6)]


def blocks(axes):
    """(row, start, end) of each block, rows counted from the top."""
    paths = [p.vertices for c in axes.collections for p in c.get_paths()]
    return sorted((round(v[:, 1].mean()), v[:, 0].min(), v[:, 0].max()) for v in (p[:4] for p in paths))


# --- the trace


def trace(tmp_path, events):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    return path


def event(name, ts, dur, cat="cpu_op", **args):
    return {"name": name, "ts": ts, "dur": dur, "cat": cat, "ph": "X", "args": args}


def test_a_trace_is_read_in_ms_from_its_first_block_in_order(tmp_path):
    path = trace(
        tmp_path,
        [
            event("b", 7000, 500, **{"Input Dims": [[[3, 4], [5]], []]}),
            event("a", 5000, 2500, "user_annotation"),
            {"name": "process_name", "ph": "M"},
            event("kernel", 1, 1, "kernel"),
        ],
    )
    assert read_spans(path) == [Span("a", 0.0, 2.5), Span("b", 2.0, 2.5, 17)]


def test_a_phase_holds_what_starts_in_it():
    mark = Span("backward 1", 1, 3)
    spans = [Span("early", 0, 2), mark, Span("in", 2, 4), Span("late", 3, 4)]
    assert in_phase(spans, "backward 1") == [Span("in", 2, 4)]


def test_collectives_and_gradients_are_found_by_name():
    assert [span.name for span in collectives(EARLY)] == ["all_reduce"] * 3
    assert layer_gradients(EARLY) == EARLY[:3]


def test_a_stretch_goes_from_the_first_start_to_the_last_end():
    spans = [Span("a", 1, 9, 2), Span("b", 2, 3, 5)]
    assert stretch(spans) == Span("a … b", 1, 9, 7)


def test_overlap_counts_each_moment_once():
    assert overlap(stretch(layer_gradients(LATE)), collectives(LATE)) == 0
    assert overlap(stretch(layer_gradients(EARLY)), collectives(EARLY)) == pytest.approx(2.9)  # 1–2.9 and 3–4
    assert overlap(Span("", 0, 1), [all_reduce(0.2, 0.9), all_reduce(0.3, 0.4)]) == pytest.approx(0.7)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"traceEvents": []}', '{"traceEvents": [{"cat": "cpu_op"}]}']
)
def test_what_is_no_trace_is_refused(tmp_path, text):
    path = tmp_path / "trace.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match="holds no profiler trace"):
        read_spans(path)
    with pytest.raises(DataError, match="holds no profiler trace"):
        read_spans(tmp_path / "none.json")


# --- the timeline


def test_blocks_stand_where_the_spans_are_counted_from_the_first_gradient():
    late, early = backward_timeline({"step 1": LATE, "step 2": EARLY}).axes
    assert blocks(late) == [(0, 0, 1), (0, 1.5, 2.5), (0, 3, 4), (1, 4.5, 10)]
    assert blocks(early) == [
        (0, 0, 1),
        (0, 1.5, 2.5),
        (0, 3, 4),
        (1, 1, 2.5),
        (1, 3, 6),
        (2, 2, 2.9),
    ]
    assert late.get_xlim() == early.get_xlim()
    assert [axes.get_title(loc="left") for axes in (late, early)] == ["step 1", "step 2"]
    assert [axes.lines[0].get_xdata()[0] for axes in (late, early)] == [4, 4]


def test_the_timeline_can_be_read_and_names_sizes_and_units():
    figure = backward_timeline({"step 1": LATE, "step 2": EARLY})
    texts = [text.get_text() for text in written(figure)]
    assert "12.6 MB" in texts
    assert "time since backward began (ms)" in texts
    assert texts.count("all-reduce") == texts.count("last gradient done") == 2
    assert [list(axes.get_yticks()) for axes in figure.axes] == [[0, 1], [0, 1.5]]  # one row and two
    assert_readable(backward_timeline({"step 1": LATE, "step 2": [*gradients(0, 1.5), all_reduce(1, 1.3)]}))


def test_many_all_reduces_carry_no_sizes():
    many = [*gradients(0, 5), *(all_reduce(i, i + 0.5) for i in range(4))]
    assert not any("MB" in text.get_text() for text in written(backward_timeline({"step 2": many})))


@pytest.mark.parametrize("spans", [gradients(0), [all_reduce(0, 1)], []])
def test_a_timeline_without_gradients_or_all_reduces_is_refused(spans):
    with pytest.raises(DataError, match="'step 1' cannot be drawn"):
        backward_timeline({"step 1": spans})


# --- the map of buckets

SETTINGS = {"step 1": [12_600_000], "bucket_cap_mb=4": [4_200_000] * 3}


def test_buckets_stand_side_by_side_and_the_last_is_hatched():
    (axes,) = bucket_map(SETTINGS).axes
    bars = [(round(bar.get_x(), 6), round(bar.get_width(), 6), bar.get_hatch()) for bar in axes.patches]
    assert bars == [(0, 12.6, "xx"), (0, 4.2, None), (4.2, 4.2, None), (8.4, 4.2, "xx")]


def test_the_map_can_be_read_and_counts_the_buckets():
    figure = bucket_map(SETTINGS | {"bucket_cap_mb=0.001": [2_000, 1_048_000] * 12})
    assert_readable(figure)
    texts = [text.get_text() for text in written(figure)]
    thin = "24 buckets, 12 of them\ntoo thin to see"
    assert {"1 bucket", "3 buckets", thin, "bucket_cap_mb=0.001"} <= set(texts)


@pytest.mark.parametrize("settings", [{}, {"step 1": []}])
def test_a_map_without_buckets_is_refused(settings):
    with pytest.raises(DataError, match="no buckets to draw"):
        bucket_map(settings)


def test_the_same_data_gives_the_same_bytes():
    assert to_png(bucket_map(SETTINGS)) == to_png(bucket_map(SETTINGS))
    assert to_png(backward_timeline({"step 1": LATE})) == to_png(backward_timeline({"step 1": LATE}))
