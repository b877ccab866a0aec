"""Exercises of chapter 12; `python -m lessons.grade 12` marks them."""

from collections.abc import Callable
from typing import Any

import numpy as np


def floor(ids: np.ndarray) -> np.ndarray:
    """Return what each target costs, in nats, a predictor that knows all about the data but what was drawn by lot.

    ids (B,T+1): rows as `minimoe.coding.data.pack` makes them, each beginning with a BOS -> (B,T), for the targets ids[:, 1:].

    An example is BOS, prompt, solution, EOS of `make_task(family, suffix, description)`, in which family, description and the
    four hex digits of the suffix are drawn evenly and independently. The predictor knows that, and `FAMILIES`, and the part of
    the row before the target. So it pays ln 16 for a hex digit, nothing for the `d` of `def`, and in between wherever some
    of the families, or some of the descriptions, still agree with what it has read.
    """
    raise NotImplementedError


def one_array(gate: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Return silu(gate) * value, silu(x) = x / (1 + e^-x), making one new array of that size and no other.

    gate, value (F,R) float32, which are left as they are -> (F,R) float32. No overflow, no warning, for any finite gate.
    The grader counts the memory that is asked for. `out=` and in-place operators are what NumPy has for it; a loop over
    numbers would take too long.
    """
    raise NotImplementedError


def check_workers(make: Callable[[int, Callable[[], Any]], Any]) -> None:
    """Raise `AssertionError` unless `make` makes workers that sum gradients as `minimoe.training.parallel.Workers` does.

    Its docstring and the chapter say what that is: sum, order, zeroing, results, fewer microbatches than there are sets.

    make(threads, zero_grads) is used like `Workers(threads, zero_grads)`: as a context manager, with a method
    `gradients(compute, microbatches)`. Graded with `Workers`, which must pass, and with five that are broken.
    """
    raise NotImplementedError
