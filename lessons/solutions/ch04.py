"""Answers to the exercises of chapter 4."""

import math
from collections.abc import Callable

import numpy as np


def rope_backward(dy: np.ndarray, first: int) -> np.ndarray:
    _, T, _, K = dy.shape
    positions = first + np.arange(T)
    angles = positions[:, None, None] * 10000.0 ** (-np.arange(0, K, 2) / K)  # (T,1,K/2), the same for every head
    cos, sin = np.cos(angles), np.sin(angles)
    dx = np.empty_like(dy)
    dx[..., 0::2] = dy[..., 0::2] * cos + dy[..., 1::2] * sin             # the even channel stands in both outputs
    dx[..., 1::2] = -dy[..., 0::2] * sin + dy[..., 1::2] * cos            # and so does the odd one
    return dx


def full_turns(K: int, context: int) -> int:
    # Pair i turns by 10000^(-2i/K) radians a position, so that a turn of 2 pi takes 2 pi * 10000^(2i/K) positions.
    return sum(2 * math.pi * 10000 ** (2 * i / K) <= context for i in range(K // 2))


def is_rope(rope: Callable[..., np.ndarray]) -> bool:
    # What cannot be seen from a property is seen by a second way to compute the same: slow, from the formula, one pair at a
    # time. The inputs matter as much. One head would hide how the angles are shared out among heads, one row how `first` is
    # read, small positions a table that ends too soon, and two channels all but the first speed.
    def slow(x: np.ndarray, first: np.ndarray) -> np.ndarray:
        y = np.empty_like(x)
        B, T, H, K = x.shape
        for b, t, h, i in np.ndindex(B, T, H, K // 2):
            angle = (first[b] + t) * 10000 ** (-2 * i / K)
            even, odd = x[b, t, h, 2 * i : 2 * i + 2]
            y[b, t, h, 2 * i] = even * math.cos(angle) - odd * math.sin(angle)
            y[b, t, h, 2 * i + 1] = even * math.sin(angle) + odd * math.cos(angle)
        return y

    x = np.random.default_rng(0).standard_normal((2, 3, 2, 8))
    starts = np.array([2, 189])
    return np.allclose(rope(x), slow(x, [0, 0]), atol=1e-9) and np.allclose(rope(x, starts), slow(x, starts), atol=1e-9)
