"""Embedding: row `id` of a table stands for token `id`."""

from typing import Any

import numpy as np

from minimoe.layers.layer import Grads, Layer, Rng, normal


class Embedding(Layer):
    """Look up each id in a table (vocabulary, width). The same table, as a `Linear`, is the model's head."""

    def __init__(self, vocabulary: int, width: int, rng: Rng, dtype: Any):
        self.weight = normal(rng, (vocabulary, width), dtype)

    def forward(self, ids: np.ndarray) -> tuple[np.ndarray, Any]:
        return self.weight.data[ids], ids                                 # (B,T) -> (B,T,D)

    def backward(self, dy: np.ndarray, saved: Any, grads: Grads) -> None:
        ids = saved
        if self.weight in grads:
            np.add.at(grads[self.weight], ids, dy)                        # a token seen twice receives two gradients
