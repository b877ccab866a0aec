"""Losses, each returned with its gradient."""

import numpy as np


def cross_entropy(logits: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> tuple[float, np.ndarray]:
    """Return sum(weights * -log softmax(logits)[target]) and its gradient.

    logits (B,T,V), targets (B,T) ids, weights (B,T): 1 / tokens for the mean over tokens, 0 where nothing is to be learned.
    """
    shifted = logits - logits.max(axis=-1, keepdims=True)                 # (B,T,V)
    e = np.exp(shifted)
    total = e.sum(axis=-1, keepdims=True)                                 # (B,T,1)
    target = targets[..., None]                                           # (B,T,1)
    log_p = np.take_along_axis(shifted, target, axis=-1) - np.log(total)  # (B,T,1)
    loss = -np.sum(weights * log_p[..., 0])

    dlogits = e / total                                                   # softmax ...
    np.put_along_axis(dlogits, target, np.take_along_axis(dlogits, target, axis=-1) - 1, axis=-1)    # ... minus one-hot
    dlogits *= weights[..., None]
    return float(loss), dlogits


def load_balance(probs: np.ndarray, counts: np.ndarray) -> tuple[float, np.ndarray]:
    """Return E * sum_i f_i P_i and its gradient with respect to `probs` (Switch Transformer, arXiv 2101.03961, eq. 4).

    probs (N,E) is the router's softmax, P_i its mean over rows; counts (E,) the rows sent to each expert, f_i their
    share. The shares come from a choice and are constants: the gradient flows through P alone. 1 at perfect balance.
    """
    N, E = probs.shape
    share = (counts / counts.sum()).astype(probs.dtype)                   # f (E,)
    loss = E * np.dot(share, probs.mean(axis=0))
    return float(loss), np.broadcast_to(share * (E / N), probs.shape)     # P_i = sum_n probs[n,i] / N
