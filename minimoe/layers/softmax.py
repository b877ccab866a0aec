"""Softmax over the last axis, and its gradient: used by attention, routing and hyper-connections."""

import numpy as np


def softmax(x: np.ndarray) -> np.ndarray:
    """Return e^x / sum(e^x) over the last axis; -inf becomes 0."""
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def softmax_backward(dp: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Return dx of p = softmax(x): what one logit gains, the others lose."""
    return p * (dp - np.sum(p * dp, axis=-1, keepdims=True))
