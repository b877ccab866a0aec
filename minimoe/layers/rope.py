"""Rotary position embedding (RoFormer, arXiv 2104.09864, eq. 15): position becomes an angle."""

from typing import Any

import numpy as np

from minimoe.layers.layer import Grads, Layer

BASE = 10000.0


class Rope(Layer):
    """Turn channel pair (2i, 2i+1) at position t by the angle t * BASE^(-2i/K).

    The score of a query at t and a key at s then depends on t - s alone. A pair is read as one complex number, so that
    turning it is one multiplication. Pairs are neighbours (0,1), (2,3), ...: interleaved, not split in halves.
    """

    def __init__(self, head_width: int):
        pair = np.arange(0, head_width, 2)                                # 2i
        self.frequencies = BASE ** (-pair / head_width)                   # (K/2,) radians a position

    def forward(self, x: np.ndarray, first: np.ndarray | int = 0) -> tuple[np.ndarray, Any]:
        """Rotate x (B,T,...,K), its rows standing at positions first, first+1, ...; `first` is a number or a (B,) array."""
        positions = np.reshape(first, (-1, 1)) + np.arange(x.shape[1])    # (B or 1, T)
        angles = positions[..., None] * self.frequencies                  # (B or 1, T, K/2)
        turn = np.exp(1j * angles)                                        # e^{i angle}
        turn = turn.astype(np.result_type(x, np.complex64))               # float32 pairs up to complex64
        turn = turn.reshape(*turn.shape[:2], *[1] * (x.ndim - 3), -1)     # the same turn for every head
        return rotate(x, turn), turn

    def backward(self, dy: np.ndarray, saved: Any, grads: Grads) -> np.ndarray:
        turn = saved
        return rotate(dy, turn.conj())                                    # a rotation is undone by the opposite angle


def rotate(x: np.ndarray, turn: np.ndarray) -> np.ndarray:
    """Multiply x (..., K), read as K/2 complex numbers, by `turn`."""
    return (x.view(turn.dtype) * turn).view(x.dtype)                      # (..., K/2) complex -> (..., K)
