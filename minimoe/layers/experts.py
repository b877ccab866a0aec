"""SwiGLU experts (arXiv 2002.05202, eq. 6): y = (silu(x G^T) * (x V^T)) D^T, with G and V stacked as `up`."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from minimoe.layers.layer import Grads, Layer, normal
from minimoe.layers.linear import Linear


class SwiGLU(Layer):
    """The activation between an expert's two matrices: the last axis holds gate and value, (..., 2F) -> (..., F)."""

    def forward(self, x: np.ndarray) -> tuple[np.ndarray, Any]:
        gate, value = np.split(x, 2, axis=-1)                             # (..., F) each
        sigmoid = np.tanh(0.5 * gate)                                     # 1 / (1 + e^-gate) = tanh(gate / 2) / 2 + 1/2,
        sigmoid *= 0.5                                                    # without overflow
        sigmoid += 0.5
        y = gate * sigmoid
        y *= value
        return y, (gate, value, sigmoid)

    def backward(self, dy: np.ndarray, saved: Any, grads: Grads) -> np.ndarray:
        gate, value, sigmoid = saved
        silu = gate * sigmoid
        dx = np.empty((*dy.shape[:-1], 2 * dy.shape[-1]), dy.dtype)
        dgate, dvalue = np.split(dx, 2, axis=-1)                          # views into dx
        np.multiply(dy, silu, out=dvalue)                                 # y = silu * value
        dsilu = dy * value                                                # y = silu * value
        np.multiply(dsilu, sigmoid + silu * (1 - sigmoid), out=dgate)     # silu = gate * sigmoid(gate)
        return dx


class Expert(Layer):
    """One expert that reads every row: the shared one. (..., D) -> (..., D)"""

    def __init__(self, width: int, expert_width: int, rng: np.random.Generator, dtype: Any):
        self.up = Linear(width, 2 * expert_width, rng, dtype)
        self.down = Linear(expert_width, width, rng, dtype)
        self.swiglu = SwiGLU()

    def forward(self, x: np.ndarray) -> tuple[np.ndarray, Any]:
        pre, saved_up = self.up.forward(x)                                # (..., 2F)
        hidden, saved_swiglu = self.swiglu.forward(pre)                   # (..., F)
        y, saved_down = self.down.forward(hidden)                         # (..., D)
        return y, (saved_up, saved_swiglu, saved_down)

    def backward(self, dy: np.ndarray, saved: Any, grads: Grads) -> np.ndarray:
        saved_up, saved_swiglu, saved_down = saved
        dhidden = self.down.backward(dy, saved_down, grads)
        dpre = self.swiglu.backward(dhidden, saved_swiglu, grads)
        return self.up.backward(dpre, saved_up, grads)


class Experts(Layer):
    """E experts, each of which reads its own rows. x (R,D), grouped by expert, counts (E,) rows each -> y (R,D)."""

    def __init__(self, experts: int, width: int, expert_width: int, rng: np.random.Generator, dtype: Any):
        self.up = normal(rng, (experts, 2 * expert_width, width), dtype)
        self.down = normal(rng, (experts, width, expert_width), dtype)
        self.swiglu = SwiGLU()

    def forward(self, x: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, Any]:
        y, saved_swiglu = np.empty_like(x), {}
        for e, rows in groups(counts):
            pre = x[rows] @ self.up.data[e].T                             # (rows, 2F)
            hidden, saved_swiglu[e] = self.swiglu.forward(pre)            # (rows, F)
            np.matmul(hidden, self.down.data[e].T, out=y[rows])           # (rows, D)
        return y, (x, counts, saved_swiglu)

    def backward(self, dy: np.ndarray, saved: Any, grads: Grads) -> np.ndarray:
        x, counts, saved_swiglu = saved
        dx = np.empty_like(x)
        for e, rows in groups(counts):
            dhidden = dy[rows] @ self.down.data[e]                        # y = hidden down^T
            dpre = self.swiglu.backward(dhidden, saved_swiglu[e], grads)  # hidden = swiglu(pre)
            np.matmul(dpre, self.up.data[e], out=dx[rows])                # pre = x up^T
            if self.up in grads:
                grads[self.up][e] += dpre.T @ x[rows]                     # pre = x up^T
            if self.down in grads:
                gate, value, sigmoid = saved_swiglu[e]
                grads[self.down][e] += dy[rows].T @ (gate * sigmoid * value)       # y = hidden down^T
        return dx


def groups(counts: np.ndarray) -> Iterator[tuple[int, slice]]:
    """Yield (expert, its rows) for every expert that has any."""
    end = 0
    for e, count in enumerate(counts.tolist()):
        start, end = end, end + count
        if count:
            yield e, slice(start, end)
