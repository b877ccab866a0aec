"""AdamW (arXiv 1711.05101, algorithm 2; its lambda is our learning_rate * weight_decay), and clipping by the global norm."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from minimoe.errors import InputError
from minimoe.layers.layer import Grads, Parameter

CLIP = 1.0         # longest gradient that training takes as it is
BLOCK = 1 << 17    # numbers updated at once: few enough for the cache, enough that threads seldom wait for each other


def global_norm(grads: Grads) -> float:
    """Return the Euclidean length of all gradients taken as one vector."""
    return math.sqrt(sum(float(np.dot(g.reshape(-1), g.reshape(-1))) for g in grads.values()))


def clip(parameters: Mapping[str, Parameter], grads: Grads, limit: float) -> tuple[float, float]:
    """Return the global norm, and the scale that shortens the gradient to `limit` if it is longer.

    Raises `InputError`, naming the first tensor that went wrong, if the norm is not finite: before any weight has moved.
    """
    norm = global_norm(grads)
    if not math.isfinite(norm):
        bad = [name for name, p in parameters.items() if p in grads and not np.isfinite(grads[p]).all()]
        what = f"the gradient of {bad[0]} holds NaN or infinity" if bad else "the gradient is too long to measure"
        raise InputError(f"{what}; this step changed no weight. Go on by --resume and a lower --learning-rate")
    return norm, min(1.0, limit / norm) if norm else 1.0


class AdamW:
    """p <- p - learning_rate * (mhat / (sqrt(vhat) + eps) + weight_decay * p), both terms from the old p.

    mhat and vhat are the running means of g and g^2, divided by 1 - beta^t so that they don't start near zero. Only
    matrices decay: norm gains and stream weights are no more likely to be near zero than anywhere else.
    """

    def __init__(
        self,
        parameters: Mapping[str, Parameter],
        learning_rate: float,
        betas: tuple[float, float] = (0.9, 0.95),
        weight_decay: float = 0.1,
        eps: float = 1e-8,
    ):
        self.parameters = dict(parameters)
        self.learning_rate, self.betas, self.weight_decay, self.eps = learning_rate, betas, weight_decay, eps
        self.m = {name: np.zeros_like(p.data) for name, p in self.parameters.items()}
        self.v = {name: np.zeros_like(p.data) for name, p in self.parameters.items()}
        self.t = 0

    def step(self, grads: Grads, scale: float = 1.0, run: Callable[..., Any] = map) -> None:
        """Update in place every parameter that has a gradient, taken `scale` times. `run` is `map`, or a thread pool's."""
        self.t += 1
        for _ in run(lambda block: self.update(scale, *block), self.blocks(grads)):
            pass

    def blocks(self, grads: Grads) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, float]]:
        """Yield (p, g, m, v, weight decay) block by block; p, m and v are views, updated in place."""
        for name, parameter in self.parameters.items():
            if parameter in grads:
                decay = self.weight_decay if parameter.data.ndim >= 2 else 0.0
                arrays = parameter.data, grads[parameter], self.m[name], self.v[name]
                for start in range(0, parameter.data.size, BLOCK):
                    p, g, m, v = (a.reshape(-1)[start : start + BLOCK] for a in arrays)
                    yield p, g, m, v, decay

    def update(self, scale: float, p: np.ndarray, g: np.ndarray, m: np.ndarray, v: np.ndarray, decay: float) -> None:
        beta1, beta2 = self.betas
        g = g * scale
        m *= beta1
        m += (1 - beta1) * g
        v *= beta2
        v += (1 - beta2) * g * g
        mhat = m / (1 - beta1**self.t)
        vhat = v / (1 - beta2**self.t)
        p -= self.learning_rate * (mhat / (np.sqrt(vhat) + self.eps) + decay * p)
