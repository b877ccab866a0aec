"""Answers to chapter 7."""

import numpy as np

from minimoe.layers.moe import MoE
from minimoe.layers.softmax import softmax_backward


def which_routers_learn() -> list[bool]:
    # Whatever is divided by its own sum is 1 when it stands alone, be it a softmax (0) or sigmoids (3), and 1 has no slope.
    # Constant weights (5) have none either. The others change with the scores: 1 and 4 by themselves, 2 by comparison.
    return [False, True, True, False, True, False]


def logits_gradient(
    dy: np.ndarray, outputs: np.ndarray, weights: np.ndarray, chosen: np.ndarray, experts: int
) -> np.ndarray:
    dweights = np.einsum("nd,nkd->nk", dy, outputs)                       # dw_j = sum over d of dy_d o_jd
    mean = np.sum(weights * dweights, axis=1, keepdims=True)              # what the weights say on average
    dlogits = np.zeros((len(dy), experts), dy.dtype)
    # A row's choices all differ, so that nothing is written twice
    np.put_along_axis(dlogits, chosen, weights * (dweights - mean), axis=1)
    return dlogits


def cut_path(moe: MoE, x: np.ndarray, dy: np.ndarray) -> str:
    _, saved = moe.forward(x)
    grads = moe.zero_grads()
    dx = moe.backward(dy, saved, grads)
    if not grads[moe.router.weight].any():
        return "weights"
    # The parts are whole, so each path can be walked by itself; what the layer returned should be the sum of all three
    drows = dy.reshape(-1, dy.shape[-1])
    from_experts, dweights = moe.experts.backward(drows, saved.experts, {})
    dlogits = np.zeros_like(saved.probs)
    np.put_along_axis(dlogits, saved.chosen, softmax_backward(dweights, saved.weights), axis=1)
    paths = {
        "shared": moe.shared.backward(drows, saved.shared, {}),
        "experts": from_experts,
        "router": moe.router.backward(dlogits, saved.router, {}),
        "none": np.zeros_like(drows),
    }
    missing = sum(paths.values()) - dx.reshape(drows.shape)
    return min(paths, key=lambda name: np.abs(missing - paths[name]).max())
