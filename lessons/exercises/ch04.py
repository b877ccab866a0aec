"""Exercises of chapter 4. Fill in, then: python -m lessons.grade 04"""

from collections.abc import Callable

import numpy as np


def rope_backward(dy: np.ndarray, first: int) -> np.ndarray:
    """Return the gradient of what RoPE rotated, without complex numbers.

    dy (B,T,H,K), float64, is the gradient of the rotated array; its positions are first, first+1, ..., first+T-1. Pairs
    are neighbours, (0,1), (2,3), ..., the base is 10000. Returns dx (B,T,H,K) and leaves dy as it is. No complex number, and
    nothing from minimoe.
    """
    raise NotImplementedError


def full_turns(K: int, context: int) -> int:
    """Return how many of the K/2 pairs of a head have a wavelength of at most `context` positions.

    The wavelength is the number of positions, not necessarily whole, after which a pair has made one full turn. The
    others never come round within the context. Base 10000.
    """
    raise NotImplementedError


def is_rope(rope: Callable[..., np.ndarray]) -> bool:
    """Say whether `rope` is the rotation of this chapter.

    rope(x, first=0) takes x (B,T,H,K), float64, whose rows start at position `first`, a number or a (B,) array, and returns
    it rotated, (B,T,H,K). You may call it as often as you like, with inputs of your own; positions go up to 191. Return
    True for the right one and False for every other. Nothing from minimoe.
    """
    raise NotImplementedError
