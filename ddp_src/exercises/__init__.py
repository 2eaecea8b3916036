"""The exercises: `check` runs a learner's function on real ranks and says what it did wrong.

A chapter's exercises stand in the module with the chapter's name, in its `EXERCISES`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable

from ddp_src.errors import ConfigError
from ddp_src.exercises._exercise import Exercise
from ddp_src.exercises._verdict import verdict


def check(name: str, fn: Callable) -> None:
    """Try `fn`, the learner's answer to exercise `name`, and print what came of it in both languages.

    The answer runs on ranks of its own: whatever it does, this process goes on. A wrong or unfinished
    answer is told, not raised; `ConfigError` means that there is no exercise `name`.
    """
    mark, feedback = verdict(_find(name), fn)
    print(f"{mark} {name}: {feedback.en}\n{mark} {name}：{feedback.zh}")


def hint(name: str) -> None:
    """Print one hint for exercise `name` in both languages. Raises `ConfigError` for an unknown name."""
    exercise = _find(name)
    print(f"{name}: {exercise.hint.en}\n{name}：{exercise.hint.zh}")


def solution(name: str) -> None:
    """Show the reference solution of exercise `name`. Raises `ConfigError` for an unknown name."""
    from ddp_src.notebook import show_source

    show_source(_find(name).solution)


def all_exercises() -> dict[str, Exercise]:
    """Every exercise by name, in the order of the chapters' module names."""
    found: dict[str, Exercise] = {}
    for module in pkgutil.iter_modules(__path__):
        if not module.name.startswith("_"):
            found |= importlib.import_module(f"{__name__}.{module.name}").EXERCISES
    return found


def _find(name: str) -> Exercise:
    exercises = all_exercises()
    if name not in list(exercises):  # a list can be asked for anything, also for what cannot be hashed
        names = ", ".join(exercises)
        raise ConfigError(
            f"there is no exercise {name!r}: choose one of {names}.",
            f"没有名为 {name!r} 的练习：请从 {names} 中选择。",
        )
    return exercises[name]
