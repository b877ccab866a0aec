"""Exercises of chapter 6, linear attention. Write the bodies, then: python -m lessons.grade 06"""

import numpy as np


def reverse_scan(q: np.ndarray, k: np.ndarray, v: np.ndarray, dn: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (dq, dk, dv) of n[t] = sum over s <= t of (q[t] . k[s]) v[s], for one head.

    q and k are (T,K), v and dn, the gradient of n, are (T,V): values have a width of their own here, so that a transpose
    too many does not fit. Go through the positions one at a time, forward once and backward once. No array may
    have T * T numbers: the check reads 4,000 positions and looks at the memory.
    """
    raise NotImplementedError


def saved_numbers(T: int, K: int, C: int) -> int:
    """Return how many numbers `forward` keeps for backward in `scores` and `kv`, for one head of one row.

    T positions are read in chunks of C; the last chunk is shorter if C does not divide T. `chunks` holds the two arrays.
    """
    raise NotImplementedError


def smallest_inputs() -> dict[str, tuple[int, int]]:
    """Return, for each fault, the smallest (T, C) at which the gradient of the layer's input is wrong.

    T is the number of positions and comes first: the smallest T at which any chunk size shows the fault, and of those
    chunk sizes the smallest, from 1 to T. The faults are these six of lessons/mutants.py: linear-attention-no-reverse-sum,
    linear-attention-future-z-forgotten, linear-attention-future-kv-overwritten, linear-attention-future-not-masked,
    linear-attention-query-misses-past, linear-attention-scores-transposed.
    """
    raise NotImplementedError


def forms_agree(layer, x: np.ndarray) -> bool:
    """Return whether `layer` gives the same when it reads x at once and when it reads it in parts.

    `layer` is a LinearAttention of float64, x is (B,T,D) with B of 2 or more and T of 8 or more. Use `layer.forward(x)` and
    `layer.step(part, state)`, whose first state is None. Faults are planted in what one part leaves to the next, or in how
    the next part uses it. The package's gradient check, which reads all positions at once and in chunks of 5, does not see
    them; the answer must be False for each of them, and True for the layer as it stands.
    """
    raise NotImplementedError
