"""Exercises of chapter 1. Write the bodies; then python -m lessons.grade 01"""

import numpy as np

from minimoe.layers.layer import Layer


def is_right(layer: Layer, x: np.ndarray) -> bool:
    """Return whether layer.backward belongs to layer.forward: a gradient check of your own.

    `layer` and `x` are float64, and forward is smooth there. Look at the gradient of x and at that of every parameter
    (`layer.named_parameters()`), and hold backward to its contract: it adds into `grads`, it is right each time it is
    called with the same `saved`, and it spoils nothing. Leave x and the parameters as they were. Gradients may be
    as small as 1e-6 or as large as 1e6 and still be right, or wrong. Not to be used: minimoe.gradcheck.
    """
    raise NotImplementedError


def best_step(size: float, third: float, eps: float) -> float:
    """Return the step h at which the error of a centred difference is smallest.

    The error is eps * size / h + third * h**2 / 6: `size` is the sum of the absolute terms of f, `third` the absolute
    third derivative, `eps` the rounding of one operation. All are above 0. A formula, not a search.
    """
    raise NotImplementedError


def blind_upstream(x: np.ndarray, outputs: int) -> np.ndarray:
    """Return an upstream gradient r (N, outputs) for which a certain wrong backward gives the right answer.

    x (N, inputs) went into a Linear layer. The right gradient of its weight is r.T @ x. The wrong one hands every row
    the gradient of the row before it: np.roll(r, 1, axis=0).T @ x. Find an r, for any x, with which a check that looks at
    the weight sees no difference. Every output must be reached: no column of r may be zero throughout.
    """
    raise NotImplementedError
