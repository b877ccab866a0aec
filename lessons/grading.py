"""What a chapter's checks are made of: an exercise, the way to say what is wrong with an answer, and how far off it is."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from lessons.mutants import Mutant, planted


class Wrong(Exception):
    """An answer is wrong; the message says in what, and how far off."""


class Exercise(NamedTuple):
    """One exercise of a chapter: the function `name` in lessons/exercises/chNN.py."""

    name: str
    minutes: int
    check: Callable[[Callable[..., Any]], None]    # raises Wrong
    hint: str


def compare(what: str, answer: Any, right: Any, tolerance: float = 1e-9) -> None:
    """Raise `Wrong` unless `answer` has the shape of `right` and is as near to it as `tolerance` times its largest number."""
    right = np.asarray(right)
    try:
        answer = np.asarray(answer, dtype=right.dtype)
    except (TypeError, ValueError):
        raise Wrong(f"{what}: expected numbers of shape {right.shape}, got {answer!r}") from None
    if answer.shape != right.shape:
        raise Wrong(f"{what}: the shape is {answer.shape}; it should be {right.shape}")
    if not np.isfinite(answer).all():
        raise Wrong(f"{what}: not all of it is finite")
    if right.size == 0:
        return
    off, scale = np.abs(answer - right), np.abs(right).max()
    if off.max() > tolerance * max(scale, 1e-300):
        where = np.unravel_index(off.argmax(), off.shape)
        place = f" at {[int(i) for i in where]}" if where else ""
        raise Wrong(f"{what}: off by {off.max():.2g}{place}, where it is {answer[where]:.6g} and should be {right[where]:.6g}")


def catches_all(test: Callable[[], Any], mutants: Sequence[Mutant]) -> None:
    """Raise `Wrong` unless `test()`, which has passed, fails under each of the mutants, and passes again; it names those that it missed.

    Any exception is a failure, as it is for pytest: with a fault in it, the code under test may raise one before `test` compares.
    """
    missed = []
    for mutant in mutants:
        with planted(mutant), np.errstate(all="ignore"):                  # what is wrong may overflow
            try:
                test()
            except Exception:
                continue
        missed.append(mutant)
    try:
        test()
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise Wrong(f"your test passed the code as it stands, and fails it when called again: {said}") from None
    if missed:
        names = ", ".join(mutant.name for mutant in missed)
        raise Wrong(f"{len(mutants) - len(missed)} of {len(mutants)} caught; missed: {names}. The first: {missed[0].why}")
