from collections import Counter
from importlib import import_module

import numpy as np
import pytest

from lessons import known_answers
from lessons.mutants import MUTANTS, Mutant, functions, planted
from minimoe import gradcheck
from minimoe.layers.rmsnorm import RMSNorm

LAYERS = [*gradcheck.cases(), *known_answers.CHECKS]
RMSNORM = "minimoe.layers.rmsnorm"


def check(layer):
    """Raise `AssertionError` unless what is now in memory passes the check of that name."""
    report = (gradcheck.cases() | known_answers.CHECKS)[layer]()
    assert report.passed, report


def code_of(module):
    return {function: function.__code__ for function in functions(import_module(module))}


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_is_caught_and_taken_back(mutant):
    before = code_of(mutant.module)
    with planted(mutant), pytest.raises(AssertionError):
        check(mutant.layer)
    after = code_of(mutant.module)
    assert before.keys() == after.keys() and all(after[f] is code for f, code in before.items())


@pytest.mark.parametrize("layer", LAYERS)
def test_nothing_fails_when_nothing_is_planted(layer):
    check(layer)


def test_names_are_unique_and_every_layer_loss_and_part_of_the_optimizer_has_three():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert {mutant.layer for mutant in MUTANTS} <= set(LAYERS)
    caught_by = Counter(mutant.layer for mutant in MUTANTS)
    assert caught_by.keys() == set(LAYERS)
    assert min(caught_by.values()) >= 3, caught_by


def test_a_fault_reaches_those_who_imported_before_and_goes_when_the_block_raises():
    layer, x = RMSNorm(4, np.float64), np.arange(8.0).reshape(2, 4)
    right, _ = layer.forward(x)
    double = Mutant("double", "rmsnorm", RMSNORM, "return unit * self", "return 2 * unit * self", "")
    with pytest.raises(KeyError), planted(double):
        np.testing.assert_array_equal(layer.forward(x)[0], 2 * right)
        raise KeyError
    np.testing.assert_array_equal(layer.forward(x)[0], right)


@pytest.mark.parametrize(
    "module, line, broken, message",
    [
        (RMSNORM, "nowhere", "", "0 times"),
        (RMSNORM, "unit", "x", "times, not once"),
        (RMSNORM, "EPSILON = 1e-6", "EPSILON = 1e-5", "no function"),
        ("minimoe.layers.sparse_attention", "super().join", "State.join", "SparseState.join would close over"),
    ],
)
def test_what_cannot_be_planted_is_refused_and_changes_nothing(module, line, broken, message):
    before = code_of(module)
    with pytest.raises(ValueError, match=message), planted(Mutant("bad", "rmsnorm", module, line, broken, "")):
        pass
    assert all(code is before[f] for f, code in code_of(module).items())


def test_functions_are_found_behind_decorators():
    names = {function.__qualname__ for module in ("minimoe.gradcheck", "minimoe.layers.layer", "lessons.mutants")
             for function in functions(import_module(module))}
    assert {"Report.passed", "State.join", "planted"} <= names            # a property, a classmethod, a context manager
    assert {"softmax", "normal"} & {f.__qualname__ for f in functions(import_module("minimoe.layers.moe"))} == set()
