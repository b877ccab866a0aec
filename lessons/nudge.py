"""The gradient that everything is compared with: by nudging, without a formula. Chapter 1 explains it."""

from collections.abc import Callable

import numpy as np


def nudged(f: Callable[[], float], data: np.ndarray, h: float = 1e-5) -> np.ndarray:
    """Return the gradient of f() with respect to every number of `data`, by nudging each in place."""
    gradient = np.empty_like(data)
    for place in np.ndindex(data.shape):
        here = data[place]
        data[place] = here + h
        up = f()
        data[place] = here - h
        down = f()
        data[place] = here
        gradient[place] = (up - down) / (2 * h)
    return gradient
