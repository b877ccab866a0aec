"""Exercises of chapter 13. Write the bodies, then: python -m lessons.grade 13"""

from typing import Any

import numpy as np

from minimoe.config import ModelConfig
from minimoe.model import MiniMoE


def state_size(config: ModelConfig, T: int) -> int:
    """Return how many floating-point numbers the state of such a model holds for one sequence that has read T positions.

    From the sizes alone: blocks, sparse_every, heads, head_width. Every sparse_every-th block has sparse attention, the
    others linear. Positions, which are whole numbers, are not counted. No model may be built.
    """
    raise NotImplementedError


def forgetful_step(q: np.ndarray, k: np.ndarray, v: np.ndarray, gamma: float, state: Any) -> tuple[np.ndarray, Any]:
    """Read one position of an attention that forgets; return (out_t, the state after it).

        out_t = sum over s <= t of gamma^(t - s) * (q_t . k_s) * v_s

    q, k, v (K,) are those of position t, and so is out_t; 0 < gamma < 1. `state` is what your function returned at
    position t - 1, and None at the first. It may not grow with t, and an old state must still be good after a step from it.
    """
    raise NotImplementedError


def check_decoding(model: MiniMoE) -> None:
    """Raise `AssertionError` if model.step is wrong; return None if it is right.

    The micro model in float64. model.forward can be trusted. Use `model.step(ids, state)` with ids (B,t); of the states of
    its blocks, `part.take(rows)`, and `type(part).join(parts)` for one block's states of several batches. Twelve faults
    will be planted one by one, those of the chapter's table, and each must be caught.
    """
    raise NotImplementedError
