"""What an exercise is made of, and the one way to say that an answer is wrong."""

from __future__ import annotations

import numbers
import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ddp_src.errors import UserError


@dataclass(frozen=True)
class Feedback:
    """One thing said to the learner, in both languages."""

    en: str
    zh: str


class WrongAnswer(UserError):
    """Raised on a rank when an answer is so wrong that its trial cannot go on."""

    def __init__(self, en: str, zh: str) -> None:
        super().__init__(*(" ".join(text.split()) for text in (en, zh)))  # one line each


@dataclass(frozen=True)
class Exercise:
    """One exercise.

    trial: `trial(fn, case)` calls the learner's `fn` and returns what is to be judged. It runs for each
        of `cases` in turn, on every one of `nprocs` ranks (Gloo, CPU, group joined).
    judge: `judge(results)` names what is wrong with a value of the learner's, or returns None;
        `results[case][rank]` is what `trial` returned there.
    solution: the reference answer; its parameters are those that the learner's function must take.
    """

    cases: Sequence[Any]
    trial: Callable[[Callable, Any], Any]
    judge: Callable[[Sequence[Sequence[Any]]], Feedback | None]
    hint: Feedback
    solution: Callable
    nprocs: int = 2


def number(value: object) -> float:
    """A returned `value` as a float: a Python or NumPy number, or an array or tensor with no dimensions.

    Raises `WrongAnswer` for anything else.
    """
    kind = type(value).__name__
    if value is None:
        raise WrongAnswer(
            "your function returns None where a number is expected: is `return` missing?",
            "你的函数返回了 None，而这里要的是一个数：是不是漏写了 `return`？",
        )
    shape = tuple(getattr(value, "shape", ()))
    if shape:
        raise WrongAnswer(
            f"your function returns a {kind} of shape {shape} where a single number is expected.",
            f"你的函数返回了形状为 {shape} 的 {kind}，而这里要的是一个数。",
        )
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number and not hasattr(value, "__array__"):  # NumPy's and torch's have it
        raise WrongAnswer(
            f"your function returns a {kind}, {reprlib.repr(value)}, where a number is expected.",
            f"你的函数返回了 {kind} 类型的 {reprlib.repr(value)}，而这里要的是一个数。",
        )
    return float(value)
