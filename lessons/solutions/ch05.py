"""Answers to the exercises of chapter 5."""

import numpy as np


def attention_backward(
    da: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray, p: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    dv = p.T @ da                                                         # a value hears from every query that reads it
    dp = da @ v.T
    dz = p * (dp - (p * dp).sum(axis=1, keepdims=True))                   # 0 where p is 0: the selection needs no mask
    dz /= np.sqrt(q.shape[1])                                             # once, for queries and keys alike
    return dz @ k, dz.T @ q, dv


def flips(q: np.ndarray, k: np.ndarray, top_k: int, step: np.ndarray) -> int:
    def kept(q: np.ndarray) -> np.ndarray:
        scores = np.where(np.tri(len(q), dtype=bool), q @ k.T, -np.inf)   # dividing by sqrt(K) would change no order
        place = max(len(k) - top_k, 0)
        threshold = np.sort(scores, axis=1)[:, place, None]               # -inf for a query with fewer than top_k keys
        return (scores >= threshold) & (scores > -np.inf)

    # Looking at the ends is enough while the keys stand still: scores are then linear in the step, so that a key that is
    # ahead of another at both ends is ahead in between.
    return int((kept(q + step) != kept(q - step)).any(axis=1).sum())


def jump(scores: np.ndarray, values: np.ndarray, top_k: int) -> np.ndarray:
    # Before and after, the selection holds the same scores: the top_k largest, the last of them being the threshold. So all
    # weights are the same, and only the value that is read with the last one is another. The jump does not go to 0 as
    # the two scores meet, which is why there is no derivative.
    order = np.argsort(-scores)
    e = np.exp(scores[order[:top_k]] - scores.max())
    weight = e[-1] / e.sum()
    return weight * (values[order[top_k]] - values[order[top_k - 1]])
