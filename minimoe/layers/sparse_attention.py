"""Sparse attention: each query of each head keeps the keys with its `top_k` largest scores; softmax is over those alone.

The selection is a constant to backward. Every score is computed before it is judged, so at this size selection saves no
arithmetic; it shows what a sparse layer computes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from minimoe.layers.layer import Grads, Layer, Rng, State
from minimoe.layers.linear import Linear
from minimoe.layers.linear_attention import heads_first, transpose
from minimoe.layers.rope import Rope
from minimoe.layers.softmax import softmax, softmax_backward


@dataclass(frozen=True)
class SparseState(State):
    position: np.ndarray  # (B,) positions read
    keys: np.ndarray      # (B,L,H,K) rotated keys of the past, the latest last; a row that has read fewer starts later
    values: np.ndarray    # (B,L,H,K)

    @classmethod
    def join(cls, states: Sequence[Self]) -> Self:
        longest = max(state.keys.shape[1] for state in states)
        return super().join([cls(s.position, pad_left(s.keys, longest), pad_left(s.values, longest)) for s in states])


class SparseAttention(Layer):
    """Causal multi-head attention over each query's `top_k` best keys (ties stay). x (B,T,D) -> y (B,T,D)."""

    def __init__(self, width: int, heads: int, head_width: int, top_k: int, rng: Rng, dtype: Any):
        self.qkv = Linear(width, 3 * heads * head_width, rng, dtype)
        self.out = Linear(heads * head_width, width, rng, dtype)
        self.rope = Rope(head_width)
        self.heads, self.head_width, self.top_k = heads, head_width, top_k

    def forward(self, x: np.ndarray) -> tuple[np.ndarray, Any]:
        y, saved, _ = self.attend(x, None)
        return y, saved

    def step(self, x: np.ndarray, state: SparseState | None) -> tuple[np.ndarray, SparseState]:
        y, _, state = self.attend(x, state)
        return y, state

    def attend(self, x: np.ndarray, state: SparseState | None) -> tuple[np.ndarray, Any, SparseState]:
        B, T, _ = x.shape
        H, K = self.heads, self.head_width
        if state is None:
            state = SparseState(np.zeros(B, int), *np.zeros((2, B, 0, H, K), x.dtype))

        qkv, saved_qkv = self.qkv.forward(x)
        qkv = qkv.reshape(B, T, 3, H, K)
        turned, saved_rope = self.rope.forward(qkv[:, :, :2], state.position)
        keys = np.concatenate([state.keys, turned[:, :, 1]], axis=1)      # (B,L,H,K)
        values = np.concatenate([state.values, qkv[:, :, 2]], axis=1)
        q, k, v = heads_first(turned[:, :, 0]), heads_first(keys), heads_first(values)     # (B,H,T or L,K)

        scores = q @ transpose(k)                                         # (B,H,T,L)
        scores *= K**-0.5
        scores += self.hide_unseen(state.position, T, keys.shape[1])
        kept = self.select(scores)                                        # (B,H,T,L)
        p = softmax(scores, kept)
        attended = np.empty((B, T, H, K), x.dtype)
        np.matmul(p, v, out=heads_first(attended))
        y, saved_out = self.out.forward(attended.reshape(B, T, H * K))
        return y, (saved_qkv, saved_rope, q, k, v, kept, p, saved_out), SparseState(state.position + T, keys, values)

    def backward(self, dy: np.ndarray, saved: Any, grads: Grads) -> np.ndarray:
        saved_qkv, saved_rope, q, k, v, kept, p, saved_out = saved
        B, H, T, K = q.shape
        dattended = heads_first(self.out.backward(dy, saved_out, grads).reshape(B, T, H, K))       # (B,H,T,K)
        dqkv = np.empty((B, T, 3, H, K), dy.dtype)
        dq, dk, dv = (heads_first(dqkv[:, :, i]) for i in range(3))
        np.matmul(transpose(p), dattended, out=dv)                        # attended = p v
        dp = dattended @ transpose(v)                                     # attended = p v
        dscores = softmax_backward(dp, p)                                 # p = softmax(scores, kept)
        dscores *= K**-0.5
        np.matmul(dscores, k, out=dq)                                     # scores = q k^T / sqrt(K)
        np.matmul(transpose(dscores), q, out=dk)
        dqkv[:, :, :2] = self.rope.backward(dqkv[:, :, :2], saved_rope, grads)
        return self.qkv.backward(dqkv.reshape(B, T, -1), saved_qkv, grads)

    def hide_unseen(self, position: np.ndarray, T: int, L: int) -> np.ndarray:
        """Return what to add to the scores: -inf for a key after the query or before the row's first position. (B,1,T,L)"""
        age = np.arange(T)[:, None] + L - T - np.arange(L)                # (T,L) positions from key to query; future: < 0
        read = position[:, None, None, None] + np.arange(T)[:, None]      # (B,1,T,1) positions before the query
        return np.where((age >= 0) & (age <= read), 0, -np.inf).astype(self.out.weight.data.dtype)

    def select(self, scores: np.ndarray) -> np.ndarray:
        """Say which of the scores (B,H,T,L) stay: those at least as large as their query's top_k-th, if it has so many."""
        L = scores.shape[-1]
        lowest = np.finfo(scores.dtype).min
        if L <= self.top_k:
            return scores >= lowest                                       # all but -inf
        threshold = np.partition(scores, L - self.top_k, axis=-1)[..., L - self.top_k, None]       # (B,H,T,1)
        return scores >= np.maximum(threshold, lowest)


def pad_left(x: np.ndarray, length: int) -> np.ndarray:
    """Put zeros before x along axis 1, (B,L,H,K) -> (B,length,H,K)."""
    return np.concatenate([np.zeros((len(x), length - x.shape[1], *x.shape[2:]), x.dtype), x], axis=1)
