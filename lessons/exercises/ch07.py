"""Exercises of chapter 7. Fill in, then: python -m lessons.grade 07"""

import numpy as np

from minimoe.layers.moe import MoE


def which_routers_learn() -> list[bool]:
    """Predict, for six ways to choose and to weigh, whether the router's matrix gets any gradient from the loss.

    In each, l = W x are a row's 8 scores, c the chosen experts, those with the largest scores, and
    y = sum over the chosen of weight * expert(x). There is no load-balance loss. W and x are drawn at random, so that no
    two scores tie. Return six answers, True where the gradient of W is not zero:

    0. one expert; its weight is the softmax over the chosen scores
    1. one expert; its weight is its probability in the softmax over all 8 scores
    2. two experts; their weights are the softmax over the two chosen scores
    3. one expert; its weight is sigmoid(score), divided by the sum of this over the chosen
    4. one expert; its weight is sigmoid(score)
    5. two experts; both weights are 1/2
    """
    raise NotImplementedError


def logits_gradient(
    dy: np.ndarray, outputs: np.ndarray, weights: np.ndarray, chosen: np.ndarray, experts: int
) -> np.ndarray:
    """Return the gradient of the router's scores, (N,E).

    dy (N,D) is the gradient of y = sum over j of weights[:, j] * outputs[:, j]; outputs (N,k,D) are what the chosen experts
    said, not yet weighted; weights (N,k) are the softmax over the chosen scores; chosen (N,k) are the experts' indices,
    different within a row, and any number of rows may choose the same; `experts` is E. Leave the arguments as they are.
    No loop over rows, and nothing from minimoe.
    """
    raise NotImplementedError


def cut_path(moe: MoE, x: np.ndarray, dy: np.ndarray) -> str:
    """Say what is wrong with moe.backward.

    `moe` is a layer in float64 in which one line of MoE.backward may be broken; moe.forward, and forward and backward of
    moe.router, moe.experts and moe.shared, are whole. x and dy are (B,T,D). No load-balance loss. Return

    "shared"    the input's gradient lacks the path through the shared expert
    "experts"   ... the path through the routed experts
    "router"    ... the path through the router, whose matrix gets the gradient it should
    "weights"   nothing arrives at the router at all, neither for its matrix nor for the input
    "none"      nothing is missing

    You may call whatever the layer offers, as often as you like, but no finite differences: one backward must be enough.
    """
    raise NotImplementedError
