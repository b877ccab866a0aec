"""Solutions of chapter 15."""

from collections.abc import Mapping, Sequence
from math import comb
from typing import Any


def silent(chances: Mapping[float, float], G: int) -> float:
    """All are the first reward, or all are the second, ...: these exclude each other, so their probabilities add up."""
    return float(sum(chance**G for chance in chances.values()))


def exploit() -> str:
    """The standard library has an object that is equal to anything: it is made for tests."""
    return '__import__("unittest.mock").mock.ANY'


def same_answer(value: Any, expected: Any) -> bool:
    """The type first, and exactly: then both are of a built-in type, whose == nobody has rewritten."""
    if type(value) is not type(expected):
        return False
    if isinstance(expected, (list, tuple)):
        return len(value) == len(expected) and all(map(same_answer, value, expected))
    return value == expected


def paired(before: Sequence[bool], after: Sequence[bool]) -> tuple[int, int, float]:
    """The smaller count of n fair coins, on both sides; at an even split the sides overlap, so the sum is cut at 1."""
    gains = sum(bool(a) and not b for b, a in zip(before, after))
    losses = sum(bool(b) and not a for b, a in zip(before, after))
    n = gains + losses
    tail = sum(comb(n, i) for i in range(min(gains, losses) + 1)) / 2**n
    return gains, losses, min(1.0, 2 * tail)
