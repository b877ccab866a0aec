"""Checks of the exercises of chapter 15."""

from collections.abc import Callable
from itertools import product
from math import comb, isclose, prod
from typing import Any

import numpy as np

from lessons.grading import Exercise, Wrong
from minimoe.coding.scoring import mcnemar
from minimoe.coding.tasks import FAMILIES, fixed_tasks
from minimoe.coding.verifier import verify


def check_silent(silent: Callable[..., Any]) -> None:
    for chances, G in [
        ({1.0: 0.3, 0.0: 0.7}, 4), ({1.0: 0.2, 0.0: 0.5, -0.1: 0.3}, 3), ({1.0: 0.1, 0.0: 0.2, -0.1: 0.3, 0.5: 0.4}, 2), ({0.0: 1.0}, 5),
    ]:
        right = sum(prod(chances[r] for r in group) for group in product(chances, repeat=G) if len(set(group)) == 1)
        answer = silent(dict(chances), G)
        if not isinstance(answer, (float, int, np.floating)):
            raise Wrong(f"silent({chances}, {G}) is {answer!r}; it should be a number")
        if isclose(answer, right, rel_tol=1e-9):
            continue
        passes = chances.get(1.0, 0.0)
        for why, wrong in {
            "that leaves out groups in which none passes": passes**G,
            "that lumps together all that does not pass; a group of failed and invalid ones has a signal": passes**G + (1 - passes) ** G,
            "that is the chance that there is a signal": 1 - right,
        }.items():
            if isclose(answer, wrong, rel_tol=1e-9):
                raise Wrong(f"silent({chances}, {G}): {why}")
        raise Wrong(f"silent({chances}, {G}) is {answer:.6g}; by counting all groups it is {right:.6g}")
    answer = silent({1.0: 0.05, 0.0: 0.95}, 64)
    if not isclose(answer, 0.05**64 + 0.95**64, rel_tol=1e-9):
        raise Wrong(f"for a group of 64 at p = 0.05 it is {answer:.6g}, not {0.95**64:.6g}")


def weak(task: Any, expression: str) -> bool:
    """The chapter's."""
    names: dict[str, Any] = {}
    exec(f"{task.prompt}    return {expression}\n", names)
    return all(names[task.name](*arguments) == expected for arguments, expected in task.cases)


def check_exploit(exploit: Callable[..., Any]) -> None:
    expression = exploit()
    if not isinstance(expression, str) or "\n" in expression:
        raise Wrong(f"it should return an expression as text, in one line, not {expression!r}")
    for word in "class", "type", "__eq__":
        if word in expression:
            raise Wrong(f"{word} is in it; find another way")
    for task in fixed_tasks("dev", 2):
        try:
            passed = weak(task, expression)
        except (Exception, SystemExit) as error:
            raise Wrong(f"on {task.name}, weak stops with {type(error).__name__}: {error}") from None
        if not passed:
            raise Wrong(f"weak does not let it pass on {task.name}; one expression has to do for {', '.join(FAMILIES)}")
        verdict = verify(task, f"{task.prompt}    return {expression}\n")
        if verdict.status == "passed":
            raise Wrong(f"verify lets it pass on {task.name}: there it is right")


class Always:
    def __eq__(self, other):
        return True


class EqualToAll(type):
    """A class of this metaclass is equal to every class."""

    def __eq__(cls, other):
        return True

    __hash__ = type.__hash__


class Anything(Always, metaclass=EqualToAll):
    pass


class Mimic:
    """Prints as what was expected."""

    def __repr__(self):
        return "3"


Namesake = type("int", (Always, Mimic), {"__module__": "builtins"})       # prints as <class 'int'>


class Liar(Always, Mimic):
    """Says that it is of the type of whatever it is asked for."""

    __hash__ = None

    def __init__(self, kind):
        self.kind = kind

    @property
    def __class__(self):
        return self.kind


class Int(int):
    def __eq__(self, other):
        return True

    __hash__ = int.__hash__


class List(list):
    def __eq__(self, other):
        return True


def check_same_answer(same_answer: Callable[..., Any]) -> None:
    for value, expected in [(v, v) for v in (3, True, "", None, 0.5, [])] + [([1, [True, "a"]], [1, [True, "a"]]), ((1, 2), (1, 2))]:
        if not same_answer(value, expected):
            raise Wrong(f"{value!r} is refused where {expected!r} is expected")
    for value, expected, why in [
        (3, 4, "another number"), (1, True, "an int, not a bool"), (True, 1, "a bool, not an int"), (1.0, 1, "a float, not an int"),
        ("1", 1, "a string"), ([1], (1,), "a list, not a tuple"), ("ab", ["a", "b"], "a string, not a list"), (None, 0, "None"),
        ([1], [True], "an int inside a list"), ([[1.0]], [[1]], "a float two lists deep"),
        ([1, 2], [1], "a longer list"), ([1], [1, 2], "a shorter list"), ([], ["a"], "an empty list"), (float("nan"), 0.5, "NaN"),
    ]:
        if accepted(same_answer, value, expected, repr(value)):
            raise Wrong(f"{value!r} passes for {expected!r}: {why}")
    for value, expected, what in [
        (Always(), 3, "an object that is equal to everything"), ([Always()], [3], "a list of an object that is equal to everything"),
        (Mimic(), 3, "an object that prints as 3"), ([Mimic()], [3], "a list of an object that prints as 3"),
        (Liar(int), 3, "an object whose __class__ says int, that prints as 3 and is equal to everything"),
        (Namesake(), 3, "an object that is equal to everything, of another class that is called int"),
        (Anything(), 3, "an object that is equal to everything, and its class is equal to every class"),
        (Int(4), 3, "an object of a subclass of int with its own __eq__"),
        (List([9]), [3], "an object of a subclass of list with its own __eq__"),
    ]:
        if accepted(same_answer, value, expected, what):
            raise Wrong(f"this passes for {expected!r}: {what}")


def accepted(same_answer: Callable[..., Any], value: Any, expected: Any, shown: str) -> bool:
    try:
        return bool(same_answer(value, expected))
    except Exception as error:
        raise Wrong(f"{shown} against {expected!r}: {type(error).__name__}: {error}") from None


def check_paired(paired: Callable[..., Any]) -> None:
    rng = np.random.default_rng(0)
    counts = [(6, 0), (0, 6), (15, 5), (3, 4), (4, 4), (0, 0), (1, 0), (65, 0)]
    for gains, losses in counts:
        pairs = [(False, True)] * gains + [(True, False)] * losses + [(True, True)] * 5 + [(False, False)] * 3
        pairs = [pairs[i] for i in rng.permutation(len(pairs))]
        answer = paired([b for b, _ in pairs], [a for _, a in pairs])
        if not isinstance(answer, tuple) or len(answer) != 3:
            raise Wrong(f"it should return (gains, losses, p), not {answer!r}")
        if answer[:2] == (losses, gains) and gains != losses:
            raise Wrong(f"{gains} gains and {losses} losses come out the other way round")
        if answer[:2] != (gains, losses):
            counted = f"of {gains} gains and {losses} losses it counts {answer[0]} and {answer[1]}"
            raise Wrong(f"{counted}; what both or neither solved is no change")
        n, p = gains + losses, mcnemar(gains, losses)
        if isclose(answer[2], p, rel_tol=1e-9):
            continue
        if n and isclose(answer[2], p / 2, rel_tol=1e-9):
            raise Wrong(f"{gains} gained, {losses} lost: p is {answer[2]:.4g}; that is one direction, and either would have surprised")
        if answer[2] > 1:
            raise Wrong(f"{gains} gained, {losses} lost: a probability of {answer[2]:.4g}; both sides hold the even split")
        if n and isclose(answer[2], 2 * comb(n, min(gains, losses)) / 2**n, rel_tol=1e-9):
            raise Wrong(f"{gains} gained, {losses} lost: that is this very split alone; splits that are more uneven count too")
        raise Wrong(f"{gains} gained, {losses} lost: p is {answer[2]:.6g}; exactly it is {p:.6g}")


EXERCISES = [
    Exercise("silent", 10, check_silent, "In how many ways can all be equal? They exclude each other."),
    Exercise("exploit", 15, check_exploit, "Tests sometimes need an object that is equal to anything, and the standard library has one. "
             "Or: what can be seen from inside a function of those who called it?"),
    Exercise("same_answer", 15, check_same_answer, "`type(value)` cannot be overridden, `isinstance` asks the object. "
             "When do you know whose == you call?"),
    Exercise("paired", 15, check_paired, "Only tasks that changed are coins. Sum the binomial coefficients up to the smaller count, "
             "then think of the other side."),
]
