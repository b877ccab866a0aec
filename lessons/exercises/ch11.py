"""Exercises of chapter 11. Write the bodies, then: python -m lessons.grade 11"""

from collections.abc import Callable
from types import ModuleType

import numpy as np


def first_step(beta1: float, beta2: float, m_corrected: bool, v_corrected: bool) -> float:
    """Return how far Adam's first step moves a number whose gradient is positive, in learning rates.

    Each of the two running means is corrected or not, as the arguments say. No decay; eps is too small to count.
    """
    raise NotImplementedError


def decay_order(make: Callable[[float, float], Callable[[np.ndarray, np.ndarray], np.ndarray]]) -> str:
    """Return how an optimizer decays that you can only call.

    make(lr, decay) returns a new optimizer of one matrix: a function (p, g) -> the new p, arrays of one shape (rows, columns),
    a step each time it is called. Betas are 0.9 and 0.95, eps is 1e-8. With u = mhat / (sqrt(vhat) + eps), it computes one of

        "old"       p - lr * (u + decay * p)
        "after"     p - lr * u, and then that, times 1 - lr * decay
        "coupled"   p - lr * u, where g + decay * p has gone into the means
        "unscaled"  p - lr * u - decay * p
    """
    raise NotImplementedError


def check_optimizer(optim: ModuleType) -> None:
    """Raise `AssertionError` if `optim`, which is minimoe.training.optim, is wrong; return None if it is right.

    What it should do is said there, in the docstrings of `global_norm`, `clip` and `AdamW`. Twelve faults will be planted in it
    one by one, eight of the step and four of clipping (`python -m lessons.break_it 11` shows them), and each must be caught.
    """
    raise NotImplementedError
