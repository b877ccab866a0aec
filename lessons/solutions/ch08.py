"""Answers to chapter 8."""

import numpy as np


def below_one() -> np.ndarray:
    # A share a of the rows is undecided and goes to the first expert; the others are sure of the second. Then f = (a, 1 - a),
    # P = (a/2, 1 - a/2), and 2 f.P = a^2 + 2 (1 - a)(1 - a/2) = 2 a^2 - 3 a + 2: least at a = 3/4, where it is 0.875.
    # Expert 0 is crowded, and the mean probability says the opposite.
    return np.array([[0.5, 0.5], [0.5, 0.5], [0.5, 0.5], [0.0, 1.0]])


def balance_gradient(logits: np.ndarray, counts: np.ndarray) -> np.ndarray:
    N, E = logits.shape
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    f = counts / counts.sum()                                             # of all choices, k for each row
    met = p @ f                                                           # (N,) the load that each row expects to meet
    return E / N * p * (f - met[:, None])


def balance_by_bias(logits: np.ndarray, k: int, rate: float, steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    E = logits.shape[1]
    bias = np.zeros(E)

    def choose() -> np.ndarray:
        return np.argsort(-(logits + bias), axis=1, kind="stable")[:, :k]

    for _ in range(steps):
        counts = np.bincount(choose().reshape(-1), minlength=E)           # an expert that nobody chose has a count of 0
        bias += rate * np.sign(counts.mean() - counts)
    chosen = choose()
    scores = np.take_along_axis(logits, chosen, axis=1)                   # without the bias
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))          # best by score + bias need not be best by score
    return bias, chosen, weights / weights.sum(axis=1, keepdims=True)
