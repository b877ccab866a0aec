"""RMSNorm (arXiv 1910.07467, eq. 4): divide by the root mean square, multiply by a learned gain."""

from typing import Any

import numpy as np

from minimoe.layers.layer import Grads, Layer, Parameter

EPSILON = 1e-6


class RMSNorm(Layer):
    """Normalise the last axis: y = x / sqrt(mean(x^2) + 1e-6) * gain."""

    def __init__(self, width: int, dtype: Any):
        self.weight = Parameter(np.ones(width, dtype))

    def forward(self, x: np.ndarray) -> tuple[np.ndarray, Any]:
        mean_square = np.einsum("...d,...d->...", x, x)[..., None] / x.shape[-1]       # (..., 1)
        scale = 1 / np.sqrt(mean_square + EPSILON)                                     # (..., 1)
        unit = x * scale                                                               # (..., D)
        return unit * self.weight.data, (unit, scale)

    def backward(self, dy: np.ndarray, saved: Any, grads: Grads) -> np.ndarray:
        unit, scale = saved
        D = unit.shape[-1]
        if self.weight in grads:
            grads[self.weight] += np.einsum("nd,nd->d", dy.reshape(-1, D), unit.reshape(-1, D))    # y = unit * gain
        dunit = dy * self.weight.data                                                  # y = unit * gain
        # unit = x * scale, and scale shrinks as x grows: what points along unit is lost
        along = np.einsum("...d,...d->...", dunit, unit)[..., None] / D                # (..., 1)
        return (dunit - unit * along) * scale
