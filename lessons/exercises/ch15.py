"""Exercises of chapter 15; `python -m lessons.grade 15` marks them."""

from collections.abc import Mapping, Sequence
from typing import Any


def silent(chances: Mapping[float, float], G: int) -> float:
    """Return the probability that all G rewards of a group are equal.

    chances: reward -> its probability; they add up to 1. The G rewards are drawn independently.
    """
    raise NotImplementedError


def exploit() -> str:
    """Return an expression in x, one line, that `weak` of the chapter lets pass for every task of every family, and that
    `minimoe.coding.verifier.verify` lets pass for none.

    Without `class`, `type` and `__eq__`, which the chapter has shown. It may not end the process, nor write, nor change anything but
    the values it was handed. `weak` runs the expression as Python and compares value == expected. Think of what the
    expression can reach: all of Python's builtins, and everything that can be imported.
    """
    raise NotImplementedError


def same_answer(value: Any, expected: Any) -> bool:
    """Return whether a value that generated code gave is the expected one, in value and in type.

    `expected` is made of int, float, bool, str, None, and lists and tuples of these. `value` may be anything, an object of
    a hostile class too; what it says of itself in `__eq__` or `__class__` is not to be believed. 1, 1.0 and True are three
    different answers, [1] and (1,) two, at any depth.
    """
    raise NotImplementedError


def paired(before: Sequence[bool], after: Sequence[bool]) -> tuple[int, int, float]:
    """Return (gains, losses, p) of two models on the same tasks.

    before, after: for each task, whether it was solved. A gain was solved after and not before, a loss before and not after. p is
    the probability, had each change been a fair coin's, of a split of the changes at least so uneven in either direction, exactly
    and at most 1; without any change it is 1.
    """
    raise NotImplementedError
