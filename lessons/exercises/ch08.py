"""Exercises of chapter 8. Fill in, then: python -m lessons.grade 08"""

import numpy as np


def below_one() -> np.ndarray:
    """Find a router whose load is uneven and whose load-balance loss is under 0.89.

    There are two experts, and each row goes to the likelier one (to the first, where both are equally likely). Return probs
    (N,2), for an N of at most 1000: each row two numbers from 0 to 1 that sum to 1. The loss is
    2 * sum over i of f_i P_i, with f_i the share of rows that go to expert i and P_i the mean of column i.
    """
    raise NotImplementedError


def balance_gradient(logits: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the gradient of the load-balance loss with respect to the router's scores, (N,E).

    logits (N,E); counts (E,), the rows that each expert was given, as whole numbers, with k of them for each row: they
    are constants, and N is not their sum. The loss is E * sum over i of f_i P_i, as in the chapter, without coefficient.
    Leave the arguments as they are. No loop over rows, and nothing from minimoe.
    """
    raise NotImplementedError


def balance_by_bias(logits: np.ndarray, k: int, rate: float, steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Spread the load without a loss and without a gradient, by a bias for each expert (arXiv 2408.15664).

    logits (N,E) are a router's scores, which do not change. Begin with a bias of 0 for every expert. `steps` times: choose for
    each row the k experts with the largest score + bias, count the rows of each expert, and move each bias by `rate`: up where
    the count is under the mean count, down where it is over it, not at all where it is equal. Then choose once more, with the
    last bias.
    Return bias (E,), chosen (N,k), best first (by score + bias; ties: lower index first), and weights (N,k), the softmax over the
    chosen scores. The bias decides who is chosen, and has no part in how much they count.
    """
    raise NotImplementedError
