"""Answers to the exercises of chapter 3."""

import numpy as np


def rmsnorm_backward(dy: np.ndarray, x: np.ndarray, gain: np.ndarray, epsilon: float) -> tuple[np.ndarray, np.ndarray]:
    scale = 1 / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + epsilon)
    unit, dunit = x * scale, dy * gain
    # epsilon is inside scale and nowhere else: unit's squares have a mean a little below 1, and the formula knows
    along = np.mean(dunit * unit, axis=-1, keepdims=True)
    rows = tuple(range(x.ndim - 1))                                       # all axes but the last
    return (dunit - unit * along) * scale, np.sum(dy * unit, axis=rows)


def blind_spot() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    # Make everything that a fault forgets equal to what it puts in its place. At gain 1 a forgotten gain is forgotten for
    # nothing; in a row whose mean square is 1 so is a forgotten scale; and where r is at a right angle to the row, the term
    # that takes away what lies along it is 0, whatever stands before it.
    rng = np.random.default_rng(0)
    x, r = rng.standard_normal((2, 3, 8))
    x /= np.sqrt(np.mean(x**2, axis=1, keepdims=True))
    r -= x * np.mean(r * x, axis=1, keepdims=True)
    return x, np.ones(8), r


def swiglu_backward(
    dy: np.ndarray, x: np.ndarray, G: np.ndarray, V: np.ndarray, W: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    gate, value = x @ G.T, x @ V.T                                        # (N,F)
    s = 0.5 * np.tanh(0.5 * gate) + 0.5                                   # e^1000 would overflow
    silu = gate * s
    dhidden = dy @ W                                                      # y = hidden W^T
    dW = dy.T @ (silu * value)
    dvalue = dhidden * silu                                               # hidden = silu * value
    dgate = dhidden * value * (s + silu * (1 - s))
    return dgate @ G + dvalue @ V, dgate.T @ x, dvalue.T @ x, dW          # two matrices read x


def product() -> tuple[np.ndarray, np.ndarray]:
    # silu(a) - silu(-a) = a sigma(a) + a sigma(-a) = a, since sigma(a) + sigma(-a) = 1. So two units with opposite gates and the
    # same value, one added and one subtracted, leave a b: the gates' bend is gone and their product stays.
    up = np.array([[1.0, 0.0], [-1.0, 0.0],                               # gates x0 and -x0
                   [0.0, 1.0], [0.0, 1.0]])                               # values x1 and x1
    down = np.array([[1.0, -1.0], [0.0, 0.0]])
    return up, down
