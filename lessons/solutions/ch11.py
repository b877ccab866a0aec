"""Solutions of chapter 11."""

from collections.abc import Callable
from types import ModuleType

import numpy as np

from minimoe.layers.layer import Parameter


def first_step(beta1: float, beta2: float, m_corrected: bool, v_corrected: bool) -> float:
    """m = (1 - beta1) g and v = (1 - beta2) g^2; a correction at t = 1 divides by just that factor. g cancels."""
    m = 1 if m_corrected else 1 - beta1
    v = 1 if v_corrected else 1 - beta2
    return m / v**0.5


def decay_order(make: Callable[[float, float], Callable[[np.ndarray, np.ndarray], np.ndarray]]) -> str:
    """One step from p = 2 with g = 3 at lr 0.5 and decay 0.4. u is 1, the sign of whatever goes in, and all four differ.

    At a small lr, "old" and "after" would differ by lr^2 * decay * u alone: large numbers make a test sharp.
    """
    end = make(0.5, 0.4)(np.array([[2.0]]), np.array([[3.0]]))[0, 0]
    ends = {
        "old": 2 - 0.5 * (1 + 0.4 * 2),         # 1.1
        "after": (2 - 0.5) * (1 - 0.5 * 0.4),   # 1.2
        "coupled": 2 - 0.5,                     # 1.5
        "unscaled": 2 - 0.5 - 0.4 * 2,          # 0.7
    }
    return min(ends, key=lambda name: abs(ends[name] - end))


def check_optimizer(optim: ModuleType) -> None:
    """A trace of two steps beside the formula, one number at a time, and a gradient of length 13.

    Two steps with different gradients, or the count of steps and the corrections do not show. A matrix and a vector, or
    who decays does not. A gradient as small as eps, or the place of eps does not. A large learning rate, or the order of
    step and decay does not. A scale other than 1, or it may be ignored.
    """
    lr, decay, scale = 0.5, 0.4, 0.5
    start, steps = np.array([2.0, -1.0, 0.5]), np.array([[3.0, 1e-8, -2.0], [-1.0, 2e-8, 4.0]])
    for shape, decays in ((1, 3), decay), ((3,), 0.0):
        parameter = Parameter(start.reshape(shape).copy())
        optimizer = optim.AdamW({"parameter": parameter}, lr, betas=(0.9, 0.95), weight_decay=decay, eps=1e-8)
        p, m, v = start, 0.0, 0.0
        for t, g in enumerate(steps, 1):
            optimizer.step({parameter: g.reshape(shape).copy()}, scale)
            m, v = 0.9 * m + 0.1 * scale * g, 0.95 * v + 0.05 * (scale * g) ** 2
            p = p - lr * (m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.95**t)) + 1e-8) + decays * p)
            np.testing.assert_allclose(parameter.data.reshape(-1), p, rtol=1e-10)

    parameters = {"matrix": Parameter(np.ones((1, 2))), "vector": Parameter(np.ones(1))}
    grads = {parameters["matrix"]: np.array([[3.0, -4.0]]), parameters["vector"]: np.array([12.0])}
    for limit, expected in (1.0, 1 / 13), (6.5, 0.5), (20.0, 1.0):        # shortened, and never lengthened
        np.testing.assert_allclose(optim.clip(parameters, grads, limit), (13, expected), rtol=1e-12)
