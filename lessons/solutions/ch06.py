"""Answers to the exercises of chapter 6, linear attention."""

import numpy as np


def reverse_scan(q: np.ndarray, k: np.ndarray, v: np.ndarray, dn: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (dq, dk, dv) of n[t] = sum over s <= t of (q[t] . k[s]) v[s], for one head."""
    dq, dk, dv = np.empty_like(q), np.empty_like(k), np.empty_like(v)
    kv = np.zeros((k.shape[1], v.shape[1]))                               # (K,V) of the keys so far
    for t in range(len(q)):
        kv += np.outer(k[t], v[t])                                        # a query meets its own key too
        dq[t] = kv @ dn[t]
    dkv = np.zeros_like(kv)                                               # (K,V) of the queries from here on
    for s in reversed(range(len(q))):
        dkv += np.outer(q[s], dn[s])                                      # and a key its own query
        dk[s] = dkv @ v[s]
        dv[s] = dkv.T @ k[s]
    return dq, dk, dv


def saved_numbers(T: int, K: int, C: int) -> int:
    """Return how many numbers `forward` keeps for backward in `scores` and `kv`, for one head of one row.

    A whole chunk keeps C * C scores and one state. With T / C of them that is T * (C + K * K / C), least at C = K: there
    the two terms are equal.
    """
    whole, rest = divmod(T, C)
    chunks = whole + (rest > 0)
    return whole * C * C + rest * rest + chunks * K * K


def smallest_inputs() -> dict[str, tuple[int, int]]:
    """Return, for each fault, the smallest (T, C) at which the gradient of the layer's input is wrong."""
    return {
        "linear-attention-no-reverse-sum": (2, 2),          # two positions in one chunk; in chunks of 1 the sum has one term
        "linear-attention-future-z-forgotten": (2, 1),      # two chunks: the first hears nothing of the second
        "linear-attention-future-kv-overwritten": (3, 1),   # three: the first forgets the third
        "linear-attention-future-not-masked": (2, 2),       # a later key in the same chunk
        "linear-attention-query-misses-past": (2, 1),       # an earlier chunk
        "linear-attention-scores-transposed": (2, 2),       # scores of one position are their own transpose
    }


def forms_agree(layer, x: np.ndarray) -> bool:
    """Return whether `layer` gives the same when it reads x at once and when it reads it in parts.

    In three parts or more: a wrong first state shows in the second, a state that is wrong when it was not empty before
    only in the third. In parts of one and of several: the chunks then end at other positions.
    """
    whole, _ = layer.forward(x)
    T = x.shape[1]
    for lengths in [1] * T, [3, 2, T - 5], [T - 2, 1, 1]:
        state, parts, start = None, [], 0
        for length in lengths:
            y, state = layer.step(x[:, start : start + length], state)
            parts.append(y)
            start += length
        if not np.allclose(np.concatenate(parts, axis=1), whole, rtol=1e-9, atol=1e-9):
            return False
    return True
