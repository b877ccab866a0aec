"""Mixture of experts: a router sends each row to its two best experts, and a shared expert reads all rows."""

from typing import Any, NamedTuple

import numpy as np

from minimoe.layers.experts import Expert, Experts
from minimoe.layers.layer import Grads, Layer, Rng
from minimoe.layers.linear import Linear
from minimoe.layers.softmax import softmax, softmax_backward


class Routed(NamedTuple):
    """What `MoE.forward` saves; `probs` and `counts` are what the load-balance loss reads."""

    probs: np.ndarray     # (N,E) softmax over all the router's logits
    counts: np.ndarray    # (E,) rows sent to each expert
    chosen: np.ndarray    # (N,k) the experts of each row, best first
    weights: np.ndarray   # (N,k) softmax over the chosen logits
    router: Any
    experts: Any
    shared: Any


class MoE(Layer):
    """y = shared(x) + sum over the chosen e of weight_e * expert_e(x). x (B,T,D) -> y (B,T,D).

    The k largest logits are chosen (ties: lower index first) and weighted by a softmax over those k. The choice is a
    constant to backward; the router learns through the weights, and through the load-balance loss.
    """

    def __init__(self, width: int, experts: int, expert_width: int, chosen: int, rng: Rng, dtype: Any):
        self.router = Linear(width, experts, rng, dtype)
        self.experts = Experts(experts, width, expert_width, rng, dtype)
        self.shared = Expert(width, expert_width, rng, dtype)
        self.k = chosen

    def forward(self, x: np.ndarray) -> tuple[np.ndarray, Routed]:
        rows = x.reshape(-1, x.shape[-1])                                 # (N,D)
        logits, saved_router = self.router.forward(rows)                  # (N,E)
        chosen = np.argsort(-logits, axis=1, kind="stable")[:, : self.k]  # (N,k)
        weights = softmax(np.take_along_axis(logits, chosen, axis=1))     # (N,k)
        y, saved_experts = self.experts.forward(rows, weights, chosen)    # (N,D)
        shared, saved_shared = self.shared.forward(rows)
        y += shared
        counts = np.bincount(chosen.reshape(-1), minlength=logits.shape[1])
        return y.reshape(x.shape), Routed(softmax(logits), counts, chosen, weights, saved_router, saved_experts, saved_shared)

    def backward(self, dy: np.ndarray, saved: Routed, grads: Grads, dprobs: np.ndarray | None = None) -> np.ndarray:
        """Return dx; `dprobs` (N,E) is the gradient that the load-balance loss sends to `saved.probs`."""
        drows = dy.reshape(-1, dy.shape[-1])                              # (N,D)
        dx = self.shared.backward(drows, saved.shared, grads)             # y = experts(x) + shared(x)
        dx_experts, dweights = self.experts.backward(drows, saved.experts, grads)
        dx += dx_experts

        dlogits = np.zeros_like(saved.probs)                              # (N,E) no gradient to what was not chosen, ...
        dchosen = softmax_backward(dweights, saved.weights)
        np.put_along_axis(dlogits, saved.chosen, dchosen, axis=1)
        if dprobs is not None:
            dlogits += softmax_backward(dprobs, saved.probs)              # ... except from the load-balance loss
        dx += self.router.backward(dlogits, saved.router, grads)
        return dx.reshape(dy.shape)
