"""Softmax over the last axis, and its gradient: used by attention, routing and hyper-connections."""

import numpy as np


def softmax(x: np.ndarray, kept: np.ndarray | bool = True) -> np.ndarray:
    """Return e^x / sum(e^x) over the last axis, over the `kept` places alone; the others get 0."""
    p = x - x.max(axis=-1, keepdims=True)                                 # no overflow, and the same p
    np.exp(p, out=p)
    p *= kept
    p /= p.sum(axis=-1, keepdims=True)
    return p


def softmax_backward(dp: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Return dx of p = softmax(x), p * (dp - sum(p * dp)): what one place gains, the others lose. 0 where p is 0."""
    dx = dp - np.einsum("...i,...i->...", p, dp)[..., None]
    dx *= p
    return dx
