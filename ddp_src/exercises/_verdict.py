"""From a learner's function to a verdict: try it on ranks, judge what came back, or say why nothing did."""

from __future__ import annotations

import dis
import functools
import inspect
import linecache
import reprlib
from collections.abc import Callable

from ddp_src.exercises._attempt import Attempt, attempt
from ddp_src.exercises._exercise import Exercise, Feedback
from ddp_src.exercises._stopped import is_unfinished, why_stopped
from ddp_src.launch import LaunchError, spawn

TIMEOUT = 10  # seconds in one collective
TIME_LIMIT = 20  # seconds for all cases
RIGHT, WRONG, OPEN = "✓", "✗", "○"


def verdict(exercise: Exercise, fn: Callable) -> tuple[str, Feedback]:
    """The mark (RIGHT, WRONG or OPEN) that `fn` gets, and why. Prints what `fn` printed."""
    if fn is ... or _is_empty(fn):
        return OPEN, _not_yet(exercise)
    if refusal := _refusal(exercise, fn):
        return WRONG, refusal
    try:
        attempts = _launch(exercise, fn)
    except LaunchError as error:
        return (OPEN, _not_yet(exercise)) if is_unfinished(error) else (WRONG, why_stopped(error, TIME_LIMIT))
    for rank, one in enumerate(attempts):
        for line in one.printed:
            print(f"[rank {rank}] {line}")
    by_case = list(zip(*(one.results for one in attempts), strict=True))
    diagnosis = exercise.judge(by_case)
    return (WRONG, diagnosis) if diagnosis else (RIGHT, _praise(exercise))


def _launch(exercise: Exercise, fn: Callable) -> list[Attempt]:
    file = getattr(getattr(fn, "__code__", None), "co_filename", "")
    lines = linecache.getlines(file)
    source = {file: (len(lines), None, lines, file)} if lines else {}
    _wait_for_server()
    return spawn(
        attempt,
        (exercise, fn, source),
        exercise.nprocs,
        backend="gloo",
        timeout=TIMEOUT,
        time_limit=TIME_LIMIT,
        show=False,
    )


@functools.cache
def _wait_for_server() -> None:
    """Launch one idle rank: a cold start takes seconds, which must not count as the learner's."""
    spawn(_idle, nprocs=1, backend="gloo", show=False)


def _idle(rank: int) -> None:
    pass


def _is_empty(fn: Callable) -> bool:
    """Whether the body is only a docstring, `...` or `pass`: such bodies compile to the same code."""
    return hasattr(fn, "__code__") and _instructions(fn) == _instructions(lambda: None)


def _instructions(fn: Callable) -> list[tuple]:
    listed = dis.get_instructions(fn.__code__)
    return [(step.opname, step.argval) for step in listed if step.opname not in ("NOP", "RESUME")]


def _refusal(exercise: Exercise, fn: Callable) -> Feedback | None:
    """What can be said without running anything."""
    name, got = exercise.solution.__name__, reprlib.repr(fn)
    if not callable(fn):
        return Feedback(
            f"check needs your function and got {got}: pass `{name}` itself, without calling it.",
            f"check 需要你的函数，收到的却是 {got}：请传 `{name}` 本身，不要先调用它。",
        )
    wanted = list(inspect.signature(exercise.solution).parameters)
    try:
        taken = inspect.signature(fn)
        taken.bind(*wanted)
    except ValueError:  # a builtin without a signature
        return None
    except TypeError:
        return Feedback(
            f"your function takes {taken} and is called with {len(wanted)} values: {', '.join(wanted)}.",
            f"你的函数的参数是 {taken}，而调用时会传入 {len(wanted)} 个值：{', '.join(wanted)}。",
        )
    return None


def _not_yet(exercise: Exercise) -> Feedback:
    call = f"{exercise.solution.__name__}({', '.join(inspect.signature(exercise.solution).parameters)})"
    return Feedback(
        f"not yet: write `{call}`, then run this cell again.",
        f"还没写：写好 `{call}`，再运行一次这个单元格。",
    )


def _praise(exercise: Exercise) -> Feedback:
    cases, ranks = len(exercise.cases), exercise.nprocs
    return Feedback(
        f"right in all {cases} cases, on {ranks} ranks.", f"{ranks} 个 rank、{cases} 组数据，全对。"
    )
