"""Solutions of chapter 14."""

from collections.abc import Callable
from itertools import product

import numpy as np


def of_rows(rewards: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The sum over the others is the sum over all G less the sample's own reward."""
    G = counts.sum()
    return rewards - (counts @ rewards - rewards) / (G - 1)


def is_unbiased(advantages: Callable[[np.ndarray], np.ndarray]) -> bool:
    """Two policies of one token, uneven, with rewards of three sizes; the gradient of sum(p * r) is p * (r - p . r)."""
    for p, r in [([0.5, 0.2, 0.3], [1.0, 0.0, -0.1]), ([0.1, 0.2, 0.7], [0.3, 2.0, 1.0])]:
        p, r = np.array(p), np.array(r)
        gradient = p * (r - p @ r)
        for G in 2, 3, 4:
            expected = np.zeros(3)
            for group in product(range(3), repeat=G):
                drawn = list(group)
                score = np.eye(3)[drawn] - p                              # (G,3) gradient of log p[token] by the logits
                expected += np.prod(p[drawn]) * (advantages(r[drawn]) @ score) / G
            if np.abs(expected - gradient).max() > 1e-9:
                return False
    return True


def scored(ids: np.ndarray, prompt: np.ndarray, sampled: np.ndarray) -> np.ndarray:
    """By place: target t is id t + 1, and the ids from `prompt` on were drawn, `sampled` of them. What they are is no matter."""
    place = np.arange(1, ids.shape[1])
    return (prompt[:, None] <= place) & (place < (prompt + sampled)[:, None])
