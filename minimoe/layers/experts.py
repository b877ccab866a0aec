"""SwiGLU experts (arXiv 2002.05202, eq. 6): y = (silu(x G^T) * (x V^T)) W^T. `up` is G above V, `down` is W."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from minimoe.layers.layer import Grads, Layer, Rng, normal
from minimoe.layers.linear import Linear


def swiglu(x: np.ndarray, up: np.ndarray, down: np.ndarray) -> tuple[np.ndarray, Any]:
    """One expert's rows: x (R,D), up (2F,D), down (D,F) -> y (R,D), saved. Inside, a row is a column: gate above value."""
    pre = up @ x.T                                                        # (2F,R)
    gate, value = halves(pre)                                             # (F,R) each
    hidden = sigmoid(gate)
    hidden *= gate                                                        # silu(gate) ...
    hidden *= value                                                       # ... * value
    y = (down @ hidden).T                                                 # (R,D)
    return y, pre


def swiglu_backward(
    dy: np.ndarray, x: np.ndarray, saved: Any, up: np.ndarray, down: np.ndarray, dup: np.ndarray | None, ddown: np.ndarray | None
) -> np.ndarray:
    """Return dx; add into dup and ddown what the rows teach, unless they are None: frozen."""
    pre = saved
    gate, value = halves(pre)                                             # (F,R) each
    s = sigmoid(gate)                                                     # again, rather than kept: memory costs more
    silu = gate * s
    dhidden = down.T @ dy.T                                               # y^T = down hidden
    if ddown is not None:
        hidden = silu * value
        ddown += dy.T @ hidden.T                                          # y^T = down hidden
    dpre = np.empty_like(pre)                                             # (2F,R)
    dgate, dvalue = halves(dpre)                                          # views
    np.multiply(dhidden, silu, out=dvalue)                                # hidden = silu * value
    dsilu = dhidden * value                                               # hidden = silu * value
    np.multiply(dsilu, s + silu * (1 - s), out=dgate)                     # silu = gate * sigmoid(gate)
    if dup is not None:
        dup += dpre @ x                                                   # pre = up x^T
    return dpre.T @ up                                                    # pre = up x^T


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + e^-x) = tanh(x / 2) / 2 + 1/2, which does not overflow."""
    s = np.tanh(0.5 * x)
    s *= 0.5
    s += 0.5
    return s


def halves(pre: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """View gate and value in what `up` makes of the rows, (2F,R) -> (F,R) twice."""
    F = len(pre) // 2
    return pre[:F], pre[F:]


class Expert(Layer):
    """One expert that reads every row: the shared one. x (N,D) -> y (N,D)."""

    def __init__(self, width: int, expert_width: int, rng: Rng, dtype: Any):
        self.up = Linear(width, 2 * expert_width, rng, dtype)
        self.down = Linear(expert_width, width, rng, dtype)

    def forward(self, x: np.ndarray) -> tuple[np.ndarray, Any]:
        y, saved = swiglu(x, self.up.weight.data, self.down.weight.data)
        return y, (x, saved)

    def backward(self, dy: np.ndarray, saved: Any, grads: Grads) -> np.ndarray:
        up, down = self.up.weight, self.down.weight
        x, saved_swiglu = saved
        return swiglu_backward(dy, x, saved_swiglu, up.data, down.data, grads.get(up), grads.get(down))


class Experts(Layer):
    """E experts, of which each row has chosen k: y = sum over j of weights[:, j] * expert_{chosen[:, j]}(x).

    x (N,D), weights (N,k), chosen (N,k) -> y (N,D). What chose one expert is put together, so that it reads all of it at once.
    """

    def __init__(self, experts: int, width: int, expert_width: int, rng: Rng, dtype: Any):
        self.up = normal(rng, (experts, 2 * expert_width, width), dtype)
        self.down = normal(rng, (experts, width, expert_width), dtype)

    def forward(self, x: np.ndarray, weights: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, Any]:
        k, counts = chosen.shape[1], np.bincount(chosen.reshape(-1), minlength=len(self.up.data))
        order = np.argsort(chosen, axis=None, kind="stable")              # (Nk,) the choices, sorted by expert
        gathered = x[order // k]                                          # (Nk,D) a row's copy for each of its choices
        outputs, saved_swiglu = np.empty_like(gathered), {}
        for e, rows in groups(counts):
            outputs[rows], saved_swiglu[e] = swiglu(gathered[rows], self.up.data[e], self.down.data[e])
        slots = np.empty_like(outputs)
        slots[order] = outputs                                            # back to the order of rows
        y = np.einsum("nk,nkd->nd", weights, slots.reshape(*chosen.shape, -1))
        return y, (x, weights, counts, order, outputs, saved_swiglu)

    def backward(self, dy: np.ndarray, saved: Any, grads: Grads) -> tuple[np.ndarray, np.ndarray]:
        """Return (dx, dweights)."""
        x, weights, counts, order, outputs, saved_swiglu = saved
        k = weights.shape[1]
        gathered = x[order // k]                                          # (Nk,D) again, rather than kept
        dsorted = dy[order // k]                                          # (Nk,D) a row's dy for each choice, sorted like outputs
        dweights = np.empty(weights.size, weights.dtype)                  # (Nk,)
        dweights[order] = np.einsum("rd,rd->r", dsorted, outputs)         # y = sum over j of weights * slots
        doutputs = dsorted * weights.reshape(-1)[order, None]             # y = sum over j of weights * slots
        dgathered = np.empty_like(gathered)
        for e, rows in groups(counts):
            dup = grads[self.up][e] if self.up in grads else None
            ddown = grads[self.down][e] if self.down in grads else None
            doutput, up, down = doutputs[rows], self.up.data[e], self.down.data[e]
            dgathered[rows] = swiglu_backward(doutput, gathered[rows], saved_swiglu[e], up, down, dup, ddown)
        dcopies = np.empty_like(dgathered)                                # (Nk,D) in the order of rows, k copies of each
        dcopies[order] = dgathered                                        # gathered = x[order // k]: a row's copies add up
        return dcopies.reshape(*weights.shape, -1).sum(axis=1), dweights.reshape(weights.shape)


def groups(counts: np.ndarray) -> Iterator[tuple[int, slice]]:
    """Yield (expert, its places in the sorted choices) for every expert that has any."""
    end = 0
    for e, count in enumerate(counts.tolist()):
        start, end = end, end + count
        if count:
            yield e, slice(start, end)
