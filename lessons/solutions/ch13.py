"""Solutions of chapter 13."""

from typing import Any

import numpy as np

from minimoe.config import ModelConfig
from minimoe.model import MiniMoE


def state_size(config: ModelConfig, T: int) -> int:
    """Linear: a matrix (K,K) and a vector (K,) for each head, whatever T. Sparse: a key and a value for each head and position."""
    H, K = config.heads, config.head_width
    sparse = config.blocks // config.sparse_every
    return (config.blocks - sparse) * H * (K * K + K) + sparse * 2 * T * H * K


def forgetful_step(q: np.ndarray, k: np.ndarray, v: np.ndarray, gamma: float, state: Any) -> tuple[np.ndarray, Any]:
    """S_t = gamma * S_{t-1} + k_t v_t^T: at every step all that is old fades once more, and the new term, at distance 0, does not.

    A new array: `state *= gamma` would be shorter, and would spoil the state that the caller still has.
    """
    S = np.outer(k, v) if state is None else gamma * state + np.outer(k, v)
    return q @ S, S


def check_decoding(model: MiniMoE) -> None:
    """Four ways to step, each compared with forward: a prompt and single ids; rows exchanged; rows of different lengths; a
    state that is used twice. More positions than sparse attention keeps, or what it drops would not be missed.
    """
    ids, start = np.random.default_rng(0).integers(4, model.config.vocabulary, (3, 16)), 8
    whole, _ = model.forward(ids)

    def same(y: np.ndarray, right: np.ndarray) -> None:
        np.testing.assert_allclose(y, right, rtol=0, atol=1e-8 * np.abs(whole).max())

    prompt, state = model.step(ids[:, :start])
    same(prompt, whole[:, :start])
    now = state
    for t in range(start, ids.shape[1]):
        y, now = model.step(ids[:, t : t + 1], now)
        same(y[:, 0], whole[:, t])

    y, _ = model.step(ids[[2, 0], start : start + 1], [part.take([2, 0]) for part in state])    # the first state, used again
    same(y[:, 0], whole[[2, 0], start])

    lengths = [4, 9, 6]
    alone = [model.step(ids[i : i + 1, :n])[1] for i, n in enumerate(lengths)]
    joined = [type(parts[0]).join(parts) for parts in zip(*alone)]
    y, _ = model.step(np.array([[ids[i, n]] for i, n in enumerate(lengths)]), joined)
    same(y[:, 0], np.array([whole[i, n] for i, n in enumerate(lengths)]))
