"""Answers to the exercises of chapter 1."""

import numpy as np

from minimoe.layers.layer import Layer

STEP = 1e-5


def is_right(layer: Layer, x: np.ndarray) -> bool:
    """Return whether layer.backward belongs to layer.forward: a gradient check of your own."""
    rng = np.random.default_rng(0)
    x = x.copy()                                                          # nudged below, and not ours
    y, saved = layer.forward(x)
    r = rng.standard_normal(y.shape)                                      # not ones: a fault may cancel in a plain sum
    grads = layer.zero_grads()
    first = layer.backward(r, saved, grads).copy()
    second = layer.backward(r, saved, grads)                              # `=` for `+=` and a spoilt `saved` show here
    if not np.array_equal(first, second):
        return False
    tensors = [(x, first)] + [(p.data, grads[p] / 2) for _, p in layer.named_parameters()]
    rounding = 10 * np.finfo(float).eps * np.abs(r * y).sum() / STEP      # of the quotient itself

    def f() -> float:
        return np.sum(r * layer.forward(x)[0])

    for data, gradient in tensors:
        numeric = np.empty_like(data)
        for place in np.ndindex(data.shape):                              # all of them: these layers are small
            here, ends = data[place], []
            for sign in (1, -1):
                data[place] = here + sign * STEP
                ends.append(f())
            data[place] = here
            numeric[place] = (ends[0] - ends[1]) / (2 * STEP)
        size = np.abs(gradient).max() + np.abs(numeric).max()
        if not np.abs(gradient - numeric).max() <= 1e-6 * size + rounding:    # `not <=`, so that NaN is wrong
            return False
    return True


def best_step(size: float, third: float, eps: float) -> float:
    """Return the step h at which the error of a centred difference is smallest."""
    # the derivative of the error, -eps * size / h^2 + third * h / 3, is 0 where h^3 = 3 * eps * size / third
    return float(np.cbrt(3 * eps * size / third))


def blind_upstream(x: np.ndarray, outputs: int) -> np.ndarray:
    """Return an upstream gradient r (N, outputs) for which a certain wrong backward gives the right answer."""
    # rows that are all alike are the same after any exchange of rows: just what f = sum(y) hands to backward
    return np.ones((len(x), outputs))
