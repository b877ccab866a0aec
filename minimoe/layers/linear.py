"""Linear map without bias, y = x W^T."""

from typing import Any

import numpy as np

from minimoe.layers.layer import Grads, Layer, Parameter, Rng, normal


class Linear(Layer):
    """Map the last axis from `inputs` to `outputs` by a matrix W (outputs, inputs). No bias.

    Shares `weight` with another layer when one is given: the head of a language model is the embedding read backwards.
    """

    def __init__(self, inputs: int, outputs: int, rng: Rng, dtype: Any, weight: Parameter | None = None):
        self.weight = weight or normal(rng, (outputs, inputs), dtype)

    def forward(self, x: np.ndarray) -> tuple[np.ndarray, Any]:
        rows = x.reshape(-1, x.shape[-1])                                 # (..., in) -> (N, in): one large product
        y = rows @ self.weight.data.T                                     # (N, out)
        return y.reshape(*x.shape[:-1], -1), rows

    def backward(self, dy: np.ndarray, saved: Any, grads: Grads) -> np.ndarray:
        rows = saved
        drows = dy.reshape(-1, dy.shape[-1])                              # (N, out)
        if self.weight in grads:
            grads[self.weight] += drows.T @ rows                          # y = rows W^T
        dx = drows @ self.weight.data                                     # y = rows W^T
        return dx.reshape(*dy.shape[:-1], -1)
