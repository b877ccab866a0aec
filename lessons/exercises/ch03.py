"""Exercises of chapter 3. Fill in, then: python -m lessons.grade 03"""

import numpy as np


def rmsnorm_backward(dy: np.ndarray, x: np.ndarray, gain: np.ndarray, epsilon: float) -> tuple[np.ndarray, np.ndarray]:
    """Return (dx, dgain) of y = x / sqrt(mean(x^2) + epsilon) * gain, the mean over the last axis.

    x and dy have any number of axes, the last of them D wide: (..., D); gain (D,). dx has x's shape, dgain (D,) is summed over
    all rows. epsilon may be as large as 1, so that it shows. All float64; the arguments stay as they are. Nothing from minimoe.
    """
    raise NotImplementedError


def blind_spot() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (x, gain, r) at which six broken backward passes of RMSNorm all return the right gradients.

    x and r (N,D), gain (D,), float64, with N >= 2 and D >= 4 of your choice; r is the upstream gradient, and the layer's
    epsilon is 1e-6. The six faults are gain-dropped, along-dropped, along-summed, along-without-gain, scale-dropped and
    gain-from-input of lessons/mutants.py. Each must return the same dx and dgain as the right backward, to 1e-5 of their
    largest number. The place must not be empty: no entry of x is 0, and dx and dgain reach 0.1 somewhere.
    """
    raise NotImplementedError


def swiglu_backward(
    dy: np.ndarray, x: np.ndarray, G: np.ndarray, V: np.ndarray, W: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return (dx, dG, dV, dW) of y = (silu(x G^T) * (x V^T)) W^T, silu(a) = a / (1 + e^-a).

    x and dy (N,D), G and V (F,D), W (D,F), float64; some gates are as low as -1000, and nothing may overflow on the way (a
    warning counts). The arguments stay as they are. Nothing from minimoe.
    """
    raise NotImplementedError


def product() -> tuple[np.ndarray, np.ndarray]:
    """Return (up, down) of an expert with D = 2 and F = 2 that multiplies: for every row x, y[0] = x[0] * x[1] and y[1] = 0.

    up (4,2) is the gate's two rows above the value's two rows, down (2,2), float64. The expert has no bias. It must be exact
    but for rounding, for rows of any size and sign.
    """
    raise NotImplementedError
