"""Losses, each returned with its gradient."""

import numpy as np


def cross_entropy(logits: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> tuple[float, np.ndarray]:
    """Return sum(weights * -log softmax(logits)[target]) and its gradient.

    logits (B,T,V), targets (B,T) ids, weights (B,T): 1 / tokens for the mean over tokens, 0 where nothing is to be learned.
    """
    target = targets[..., None]                                           # (B,T,1)
    log_p = log_softmax(logits)                                           # (B,T,V)
    loss = -np.sum(weights * np.take_along_axis(log_p, target, axis=-1)[..., 0])

    dlogits = np.exp(log_p)                                               # softmax ...
    np.put_along_axis(dlogits, target, np.take_along_axis(dlogits, target, axis=-1) - 1, axis=-1)    # ... minus one-hot
    dlogits *= weights[..., None]
    return float(loss), dlogits


def policy_gradient(
    logits: np.ndarray, targets: np.ndarray, weights: np.ndarray, temperature: float
) -> tuple[float, np.ndarray]:
    """Return -sum(weights * log p(target)) and its gradient, p = softmax(logits / temperature): what was sampled from.

    logits (B,T,V), targets (B,T) the sampled ids, weights (B,T) the advantage of the sample that an id is part of, and 0
    at the prompt. It is cross entropy, in which a good sample is a target to approach and a bad one a target to avoid.
    """
    loss, dscaled = cross_entropy(logits / temperature, targets, weights)
    return loss, dscaled / temperature                                    # scaled = logits / temperature


def leave_one_out(rewards: np.ndarray) -> np.ndarray:
    """Return each sample's advantage: its reward minus the mean of the others' (RLOO, arXiv 2402.14740).

    rewards (G,), G >= 2. A baseline that the sample itself is no part of leaves the expected gradient as it is.
    """
    others = (rewards.sum() - rewards) / (len(rewards) - 1)
    return rewards - others


def log_softmax(x: np.ndarray) -> np.ndarray:
    """Return log softmax(x) over the last axis, without overflow."""
    shifted = x - x.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def load_balance(probs: np.ndarray, counts: np.ndarray) -> tuple[float, np.ndarray]:
    """Return E * sum_i f_i P_i and its gradient with respect to `probs` (Switch Transformer, arXiv 2101.03961, eq. 4).

    probs (N,E) is the router's softmax, P_i its mean over rows; counts (E,) the rows sent to each expert, f_i their
    share (of all k choices of a row; the paper has k = 1). The shares come from a choice and are constants: the gradient
    flows through P alone. 1 at perfect balance.
    """
    N, E = probs.shape
    share = (counts / counts.sum()).astype(probs.dtype)                   # f (E,)
    loss = E * np.dot(share, probs.mean(axis=0))
    return float(loss), np.broadcast_to(share * (E / N), probs.shape)     # P_i = sum_n probs[n,i] / N
