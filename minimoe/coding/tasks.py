"""The tasks: eight families of one-line functions, with hidden cases, in splits that share no function name."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from string import ascii_lowercase
from typing import NamedTuple

import numpy as np

from minimoe.errors import InputError

SUFFIXES = 1 << 16  # a function is named by its family and four hex digits


@dataclass(frozen=True)
class Task:
    """One function to write, and the calls that decide whether it was written."""

    family: str
    name: str
    argument: str
    prompt: str  # the def line and the docstring
    solution: str  # the canonical body
    cases: tuple[tuple[tuple, object], ...]  # ((arguments...), expected), never shown to the model


def _integers(rng: random.Random) -> list[int]:
    n, m = rng.randint(20, 900), rng.randint(20, 900)
    drawn = [n, n + 1, -m, -m - 1]  # both signs, both parities
    return [0, 1, -1, 2, -2, 3, -3, 7, -10, 100, -(10**9) - 1, 10**9] + drawn


def _strings(rng: random.Random) -> list[str]:
    drawn = ["".join(rng.choice(ascii_lowercase) for _ in range(length)) for length in (5, 7, 9, 12)]
    return ["", "a", "aa", "ab", "ba", "abc", "noon", "level", "Hello, world", "12 34", " x",
            ascii_lowercase * 3] + drawn


def _lists(rng: random.Random) -> list[list[int]]:
    drawn = [[rng.randint(-99, 99) for _ in range(length)] for length in (3, 4, 5, 8)]
    return [[], [0], [5], [-3], [1, 1], [1, 2, 3], [-4, 4], [-2, -5, -9], [10, -4, 7], [0, 0, 4], [900, 90, 9],
            list(range(-10, 20))] + drawn


class Family(NamedTuple):
    """What the tasks of one family have in common."""

    expression: str  # what the canonical solution returns
    reference: Callable  # the same, callable: every expected value comes from it
    arguments: Callable[[random.Random], list]  # edge cases shared by all tasks, then the task's own draws
    descriptions: tuple[str, ...]


FAMILIES = {
    "increment": Family("x + 1", lambda x: x + 1, _integers, (
        "Add one to x.", "Return x plus one.", "Increase x by one.", "Return the integer after x.")),
    "double": Family("x * 2", lambda x: x * 2, _integers, (
        "Double x.", "Return twice x.", "Multiply x by two.", "Return two times x.")),
    "even": Family("x % 2 == 0", lambda x: x % 2 == 0, _integers, (
        "Is x even?", "Return whether x is even.", "Check that x is even.", "Can x be halved exactly?")),
    "square": Family("x * x", lambda x: x * x, _integers, (
        "Square x.", "Return x squared.", "Multiply x by itself.", "Return the square of x.")),
    "is_positive": Family("x > 0", lambda x: x > 0, _integers, (
        "Is x positive?", "Return whether x is positive.", "Check that x is above zero.", "Is x more than zero?")),
    "absolute": Family("abs(x)", abs, _integers, (
        "Make x not negative.", "Return the absolute value of x.", "How far is x from zero?", "Drop the sign of x.")),
    "reverse": Family("x[::-1]", lambda x: x[::-1], _strings, (
        "Reverse the string x.", "Return x backwards.", "Turn x end to end.", "Read x from right to left.")),
    "total": Family("sum(x)", sum, _lists, (
        "Add up the list x.", "Return the sum of x.", "Sum the numbers in x.", "Return the total of x.")),
}
TRAINED = ("increment", "double", "even")  # the families that reinforcement learning trains
UNTRAINED = tuple(family for family in FAMILIES if family not in TRAINED)

# Ranges of positions in the permutation below. Training draws from the first three; the last two are for evaluation.
SPLITS = {
    "train": range(0, 49152),
    "replay": range(49152, 57344),
    "rl": range(57344, 61440),
    "dev": range(61440, 63488),
    "confirm": range(63488, 65536),
}
SAMPLED = ("train", "replay", "rl")
PER_FAMILY = {"dev": 32, "confirm": 8}


def suffix_at(position: int) -> int:
    """Return the suffix at a position of one fixed, well mixed permutation of 0..65535.

    Both operations can be undone (xor with a right shift; a product with an odd number, modulo 2**16), so no two
    positions share a suffix. Plain arithmetic, unlike a generator's shuffle, is the same in every version.
    """
    suffix = position
    for _ in range(3):
        suffix = (suffix ^ (suffix >> 7)) * 0x9E37 % SUFFIXES
    return suffix ^ (suffix >> 7)


def make_task(family: str, suffix: int, description: int = 0) -> Task:
    """Return the task of a family with a suffix, 0..65535, and one of the family's descriptions, by index.

    The cases depend on the name alone. Raises `InputError` for an unknown family, suffix or description.
    """
    _require("family", family, FAMILIES)
    expression, reference, arguments, descriptions = FAMILIES[family]
    _require("description", description, range(len(descriptions)))
    if not 0 <= suffix < SUFFIXES:
        raise InputError(f"suffix {suffix} is not four hex digits; choose one from 0 to {SUFFIXES - 1}")
    name = f"{family}_{suffix:04x}"
    return Task(
        family=family,
        name=name,
        argument="x",
        prompt=f'def {name}(x):\n    """{descriptions[description]}"""\n',
        solution=f"    return {expression}\n",
        cases=tuple(((x,), reference(x)) for x in arguments(random.Random(name))),
    )


def sample_task(split: str, rng: np.random.Generator, families: Sequence[str] = tuple(FAMILIES)) -> Task:
    """Return a task drawn from train, replay or rl: uniform over families, the split's suffixes, and descriptions.

    Raises `InputError` for any other split, so that nothing trains on dev or confirm, and for an unknown family.
    """
    _require("split to sample from", split, SAMPLED)
    for family in families:
        _require("family", family, FAMILIES)
    family = families[int(rng.integers(len(families)))]
    suffix = suffix_at(SPLITS[split][rng.integers(len(SPLITS[split]))])
    return make_task(family, suffix, int(rng.integers(len(FAMILIES[family].descriptions))))


def fixed_tasks(split: str, per_family: int | None = None, seed: int = 7) -> list[Task]:
    """Return the evaluation tasks of dev or confirm, family by family, none twice; always the same for the same seed.

    `per_family` is 32 for dev and 8 for confirm unless given; a family's first 8 of 32 are its 8.
    Raises `InputError` for any other split, or for more tasks than the split has suffixes.
    """
    _require("split to evaluate", split, PER_FAMILY)
    positions = SPLITS[split]
    count = PER_FAMILY[split] if per_family is None else per_family
    if not 1 <= count <= len(positions):
        raise InputError(f"{count} tasks a family is out of range; {split} holds from 1 to {len(positions)}")
    tasks = []
    # Shuffled whole and then cut, so that fewer tasks are the first of more.
    for family, row in FAMILIES.items():
        order = random.Random(f"{seed} {split} {family}").sample(positions, len(positions))
        tasks += [make_task(family, suffix_at(p), i % len(row.descriptions)) for i, p in enumerate(order[:count])]
    return tasks


def _require(kind: str, value: object, valid: Iterable) -> None:
    if value not in valid:
        raise InputError(f"unknown {kind} {value!r}; choose from {', '.join(map(str, valid))}")
