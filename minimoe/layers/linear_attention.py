"""Linear attention (arXiv 2006.16236, eq. 9) with rotary positions in the numerator (arXiv 2104.09864, eq. 19).

    out_t = sum_{s<=t} (R_t phi(q_t) . R_s phi(k_s)) v_s  /  (phi(q_t) . sum_{s<=t} phi(k_s) + 1e-6)

The sums over the past are kept as a matrix `kv` (K,K) and a vector `z` (K,), so nothing grows with time. Positions are read
a chunk at a time: inside a chunk, every query meets its own key and every earlier one; all before the chunk is `kv` and
`z`. The chunk size chooses the form: T is the parallel form, 1 the recurrent one, and anything between costs time linear in T.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from minimoe.layers.layer import Grads, Layer, Rng, State
from minimoe.layers.linear import Linear
from minimoe.layers.rope import Rope

EPSILON = 1e-6


@dataclass(frozen=True)
class LinearState(State):
    position: np.ndarray  # (B,) positions read
    kv: np.ndarray        # (B,H,K,K) sum of rotated phi(k) v^T
    z: np.ndarray         # (B,H,K) sum of phi(k)


class LinearAttention(Layer):
    """Causal multi-head attention whose state has a constant size. x (B,T,D) -> y (B,T,D)."""

    def __init__(self, width: int, heads: int, head_width: int, chunk_size: int, rng: Rng, dtype: Any):
        self.qkv = Linear(width, 3 * heads * head_width, rng, dtype)
        self.out = Linear(heads * head_width, width, rng, dtype)
        self.rope = Rope(head_width)
        self.heads, self.head_width, self.chunk_size = heads, head_width, chunk_size

    def forward(self, x: np.ndarray) -> tuple[np.ndarray, Any]:
        y, saved, _ = self.attend(x, None)
        return y, saved

    def step(self, x: np.ndarray, state: LinearState | None) -> tuple[np.ndarray, LinearState]:
        y, _, state = self.attend(x, state)
        return y, state

    def attend(self, x: np.ndarray, state: LinearState | None) -> tuple[np.ndarray, Any, LinearState]:
        B, T, _ = x.shape
        H, K = self.heads, self.head_width
        if state is None:
            state = LinearState(np.zeros(B, int), np.zeros((B, H, K, K), x.dtype), np.zeros((B, H, K), x.dtype))

        qkv, saved_qkv = self.qkv.forward(x)
        qkv = qkv.reshape(B, T, 3, H, K)
        qk, v = qkv[:, :, :2], np.ascontiguousarray(heads_first(qkv[:, :, 2]))     # (B,T,2,H,K), (B,H,T,K)
        phi = elu_plus_one(qk)                                            # (B,T,2,H,K)
        turned, saved_rope = self.rope.forward(phi, state.position)
        q, k = heads_first(turned[:, :, 0]), heads_first(turned[:, :, 1])  # (B,H,T,K)

        numerator, z = np.empty((2, B, T, H, K), x.dtype)
        kv, past, chunks = state.kv, state.z, []                          # past: z before the chunk
        for start in range(0, T, self.chunk_size):
            t = slice(start, start + self.chunk_size)
            qc, kc, vc = q[:, :, t], k[:, :, t], v[:, :, t]               # (B,H,C,K)
            causal = np.tri(qc.shape[2], dtype=x.dtype)                   # (C,C) 1 where the key is no later than the query
            scores = qc @ transpose(kc)                                   # (B,H,C,C)
            scores *= causal
            heads_first(numerator)[:, :, t] = scores @ vc + qc @ kv
            z[:, t] = over_time(causal, phi[:, t, 1]) + past[:, None]     # a running sum, as a product: faster than cumsum
            chunks.append((t, qc, kc, vc, scores, kv))
            kv = kv + products(kc, vc)                                    # (B,H,K,K)
            past = z[:, t][:, -1]                                         # (B,H,K)

        denominator = np.einsum("bthk,bthk->bth", phi[:, :, 0], z)[..., None] + EPSILON
        attended = numerator / denominator                                # (B,T,H,K)
        y, saved_out = self.out.forward(attended.reshape(B, T, H * K))
        saved = saved_qkv, phi, saved_rope, chunks, z, denominator, attended, saved_out
        return y, saved, LinearState(state.position + T, kv, past.copy())

    def backward(self, dy: np.ndarray, saved: Any, grads: Grads) -> np.ndarray:
        saved_qkv, phi, saved_rope, chunks, z, denominator, attended, saved_out = saved
        dattended = self.out.backward(dy, saved_out, grads).reshape(attended.shape)        # (B,T,H,K)
        dnumerator = dattended / denominator                              # attended = numerator / denominator
        ddenominator = -np.einsum("bthk,bthk->bth", dnumerator, attended)[..., None]       # the same
        dz = ddenominator * phi[:, :, 0]                                  # denominator = phi(q) . z

        dphi, dturned = np.empty((2, *phi.shape), phi.dtype)              # (B,T,2,H,K)
        dqkv = np.empty((*phi.shape[:2], 3, *phi.shape[3:]), phi.dtype)   # (B,T,3,H,K)
        dq, dk, dv = heads_first(dturned[:, :, 0]), heads_first(dturned[:, :, 1]), heads_first(dqkv[:, :, 2])
        dphi[:, :, 0] = ddenominator * z                                  # denominator = phi(q) . z
        dkv, dfuture = np.zeros_like(chunks[0][-1]), np.zeros_like(z[:, 0])    # nothing comes after the last chunk
        for t, qc, kc, vc, scores, kv in reversed(chunks):
            causal = np.tri(qc.shape[2], dtype=dz.dtype)
            dphi[:, t, 1] = over_time(causal.T, dz[:, t]) + dfuture[:, None]   # phi(k) stands in z from its position on
            dfuture = dphi[:, t, 1][:, 0]
            dn = heads_first(dnumerator)[:, :, t]                         # (B,H,C,K)
            dscores = dn @ transpose(vc)                                  # numerator = scores v + q kv
            dscores *= causal
            dq[:, :, t] = dscores @ kc + dn @ transpose(kv)               # scores = q k^T; numerator
            dk[:, :, t] = transpose(dscores) @ qc + vc @ transpose(dkv)   # scores = q k^T; kv += k^T v
            dv[:, :, t] = transpose(scores) @ dn + kc @ dkv               # numerator; kv += k^T v
            dkv = dkv + transpose(qc) @ dn                                # numerator

        dphi += self.rope.backward(dturned, saved_rope, grads)
        dphi *= np.minimum(phi, 1)                                        # phi' is 1 where x > 0, else e^x = phi
        dqkv[:, :, :2] = dphi
        return self.qkv.backward(dqkv.reshape(*phi.shape[:2], -1), saved_qkv, grads)


def elu_plus_one(x: np.ndarray) -> np.ndarray:
    """Return x + 1 where x > 0, else e^x: positive everywhere, and not cancelled to 0 where x is far below 0."""
    phi = np.minimum(x, 0)
    np.exp(phi, out=phi)
    phi += np.maximum(x, 0)
    return phi


def products(k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return sum_c k_c v_c^T, (B,H,C,K) twice -> (B,H,K,K)."""
    if k.shape[2] == 1:
        return np.einsum("bhck,bhcv->bhkv", k, v)                         # BLAS is slow where there is nothing to sum
    return transpose(k) @ v


def over_time(weights: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return sum_s weights[t,s] * x[:,s], (C,C), (B,C,H,K) -> (B,C,H,K)."""
    B, C, H, K = x.shape
    return (weights @ x.reshape(B, C, H * K)).reshape(x.shape)


def heads_first(x: np.ndarray) -> np.ndarray:
    """View (B,T,H,K) as (B,H,T,K)."""
    return x.swapaxes(1, 2)


def transpose(x: np.ndarray) -> np.ndarray:
    """View (..., i, j) as (..., j, i)."""
    return x.swapaxes(-1, -2)
