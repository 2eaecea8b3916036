"""Reading back a trace that `torch.profiler` exported: who computed and who sent, when."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ddp_src.errors import DataError

_COLLECTIVE = "gloo:"
_LAYER_BACKWARD = "autograd::engine::evaluate_function: AddmmBackward0"  # of nn.Linear


@dataclass(frozen=True)
class Span:
    """One block of a trace: `start` and `end` in ms since the trace's first block."""

    name: str
    start: float
    end: float
    numbers: int = 0  # how many the tensor has that it worked on; 0 where that was not recorded


def read_spans(path: str | Path) -> list[Span]:
    """Every operation and mark of an exported trace, in order of start.

    `numbers` needs a profile with `record_shapes=True`. Raises DataError if `path` holds no trace.
    """
    try:
        events = json.loads(Path(path).read_text(encoding="utf-8"))["traceEvents"]
        kept = [e for e in events if e.get("cat") in ("cpu_op", "user_annotation")]
        zero = min(e["ts"] for e in kept)
        spans = [_span(e, zero) for e in kept]
    except (OSError, ValueError, KeyError, TypeError):
        raise DataError(
            f"{path} holds no profiler trace: name a file that `profile.export_chrome_trace` has written.",
            f"{path} 里没有性能分析器的跟踪记录：请指定 `profile.export_chrome_trace` 写出的文件。",
        ) from None
    return sorted(spans, key=lambda span: span.start)


def in_phase(spans: Sequence[Span], phase: str) -> list[Span]:
    """The spans that start within the mark (`record_function`) called `phase`."""
    (mark,) = [span for span in spans if span.name == phase]
    return [span for span in spans if mark.start <= span.start < mark.end and span is not mark]


def collectives(spans: Sequence[Span]) -> list[Span]:
    """What Gloo's threads did, under the operation's own name: `all_reduce`, `broadcast`, ..."""
    return [
        Span(span.name.removeprefix(_COLLECTIVE), span.start, span.end, span.numbers)
        for span in spans
        if span.name.startswith(_COLLECTIVE)
    ]


def layer_gradients(spans: Sequence[Span]) -> list[Span]:
    """The computation of each linear layer's gradients in a backward pass, last layer first."""
    return [span for span in spans if span.name == _LAYER_BACKWARD]


def stretch(spans: Sequence[Span]) -> Span:
    """From the start of the first span to the end of the last, gaps included; numbers are added up."""
    return Span(
        f"{spans[0].name} … {spans[-1].name}",
        min(span.start for span in spans),
        max(span.end for span in spans),
        sum(span.numbers for span in spans),
    )


def overlap(one: Span, spans: Sequence[Span]) -> float:
    """For how many ms any of `spans` runs during `one`; a moment with several of them counts once."""
    return sum(max(0.0, min(one.end, end) - max(one.start, start)) for start, end in _union(spans))


def _union(spans: Sequence[Span]) -> list[tuple[float, float]]:
    """The stretches of time that `spans` cover, each moment once."""
    covered: list[tuple[float, float]] = []
    for span in sorted(spans, key=lambda span: span.start):
        if covered and span.start <= covered[-1][1]:
            start, end = covered.pop()
            covered.append((start, max(end, span.end)))
        else:
            covered.append((span.start, span.end))
    return covered


def _span(event: dict, zero: float) -> Span:
    """Of an event in the trace's own unit, µs."""
    start = (event["ts"] - zero) / 1e3
    shapes = event.get("args", {}).get("Input Dims", [])
    return Span(event["name"], start, start + event["dur"] / 1e3, _numbers(shapes))


def _numbers(shapes: list) -> int:
    """How many numbers there are in tensors of these shapes; a list of tensors is a nested list."""
    if shapes and all(isinstance(size, int) for size in shapes):
        return math.prod(shapes)
    return sum(_numbers(shape) for shape in shapes if isinstance(shape, list))
