"""Exercises of chapter 5. Fill in, then: python -m lessons.grade 05"""

import numpy as np


def attention_backward(
    da: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray, p: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return dq, dk and dv of one head of sparse attention, without a loop.

    da, q, k, v are (T,K): the gradient of what was read, queries, keys, values. p (T,T) holds the weights of forward, a row
    for each query, 0 where a key is later or was not selected: p = softmax(q k^T / sqrt(K)) over the selected keys, and
    a = p v. Queries and keys are taken as they are, without RoPE. Nothing from minimoe; the arguments stay as they are.
    """
    raise NotImplementedError


def flips(q: np.ndarray, k: np.ndarray, top_k: int, step: np.ndarray) -> int:
    """Return how many queries keep other keys at q + step than at q - step.

    q, k, step are (T,K), one head. Query t scores the keys 0 to t and keeps those whose score is at least its top_k-th
    largest, all of them if it has no more than top_k. Nothing from minimoe.
    """
    raise NotImplementedError


def jump(scores: np.ndarray, values: np.ndarray, top_k: int) -> np.ndarray:
    """Return by how much the output of one query jumps when the best key outside its selection gets in.

    scores (L,), all different, and values (L,K) are of the keys it may read; top_k < L. The best key outside rises, all other
    scores stay, until it passes the weakest key inside, which then leaves. Return the output just after minus the output
    just before, (K,). Nothing from minimoe.
    """
    raise NotImplementedError
