"""Rotary position embedding (RoFormer, arXiv 2104.09864, eq. 15): position becomes an angle."""

from functools import lru_cache
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
        self.head_width = head_width

    def forward(self, x: np.ndarray, first: np.ndarray | int = 0) -> tuple[np.ndarray, Any]:
        """Rotate x (B,T,...,K), its rows standing at positions first, first+1, ...; `first` is a number or a (B,) array."""
        B, T, *_, K = x.shape
        positions = np.reshape(first, (-1, 1)) + np.arange(T)             # (B or 1, T)
        turn = turns(K, 1 << int(positions.max()).bit_length(), np.result_type(x, np.complex64))[positions]
        turn = np.tile(turn, x[0, 0].size // K)                           # the same turn for every head
        return rotate(x, turn), turn

    def backward(self, dy: np.ndarray, saved: Any, grads: Grads) -> np.ndarray:
        turn = saved
        return rotate(dy, turn.conj())                                    # a rotation is undone by the opposite angle


@lru_cache
def turns(K: int, length: int, dtype: Any) -> np.ndarray:
    """Return e^{i angle} of every pair at positions 0 to length-1, (length, K/2) complex."""
    pair = np.arange(0, K, 2)                                             # 2i
    frequencies = BASE ** (-pair / K)                                     # (K/2,) radians a position
    angles = np.arange(length)[:, None] * frequencies                     # (length, K/2)
    return np.exp(1j * angles).astype(dtype)                              # float32 pairs up to complex64


def rotate(x: np.ndarray, turn: np.ndarray) -> np.ndarray:
    """Multiply x (B,T,...,K), read as complex numbers, by `turn` (B or 1, T, .../2)."""
    pairs = x.reshape(*x.shape[:2], -1).view(turn.dtype)                  # (B,T,.../2)
    return (pairs * turn).view(x.dtype).reshape(x.shape)
