"""What training minimises, and its gradient over a whole batch."""

from typing import Any

import numpy as np

from minimoe.layers.layer import Grads
from minimoe.model import MiniMoE
from minimoe.training.losses import cross_entropy, load_balance, policy_gradient
from minimoe.training.parallel import Workers, microbatches

BALANCE = 0.01        # weight of the load-balance loss
MAX_TOKENS = 2**20    # of a batch


def pretraining_gradients(model: MiniMoE, ids: np.ndarray, workers: Workers) -> tuple[Grads, dict[str, Any]]:
    """Return the gradient of the loss on ids (B,T+1), and what to write down about it.

    The loss is the mean cross entropy over all B*T tokens + BALANCE * the load-balance loss. That one is summed over
    blocks; it is each microbatch's own, weighted by its share of the rows: unlike the rest, it is not a sum over rows.
    """
    B, T = len(ids), ids.shape[1] - 1

    def compute(microbatch: tuple[np.ndarray], grads: Grads) -> tuple[float, float, np.ndarray]:
        (ids,) = microbatch
        logits, saved = model.forward(ids[:, :-1])                        # (b,T,V)
        weights = np.full((len(ids), T), 1 / (B * T), logits.dtype)
        loss, dlogits = cross_entropy(logits, ids[:, 1:], weights)
        routed = [block.moe for block in saved.blocks]
        balances, dprobs = zip(*(load_balance(moe.probs, moe.counts) for moe in routed))
        share = len(ids) / B
        model.backward(dlogits, saved, grads, [BALANCE * share * d for d in dprobs])
        return loss, share * sum(balances), np.array([moe.counts for moe in routed])

    grads, results = workers.gradients(compute, microbatches(ids))
    losses, balances, parts = zip(*results)
    counts = np.sum(parts, axis=0)                                        # (blocks, E) rows sent to each expert
    load = counts / counts.sum(axis=1, keepdims=True)
    return grads, {"loss": sum(losses), "balance_loss": sum(balances), "expert_load": load.round(4)}


def sampled_gradients(
    model: MiniMoE, ids: np.ndarray, weights: np.ndarray, workers: Workers, temperature: float = 1.0
) -> tuple[Grads, float]:
    """Return the gradient of -sum(weights * log p(id)), and the loss itself.

    ids (B,T+1); weights (B,T) are those of ids[:, 1:], and p is softmax(logits / temperature): with advantages as weights,
    the policy's loss; with 1 / (tokens to learn) where there is something to learn and 0 elsewhere, plain cross entropy.
    """

    def compute(microbatch: tuple[np.ndarray, np.ndarray], grads: Grads) -> float:
        ids, weights = microbatch
        logits, saved = model.forward(ids[:, :-1])                        # (b,T,V)
        loss, dlogits = policy_gradient(logits, ids[:, 1:], weights.astype(logits.dtype), temperature)
        model.backward(dlogits, saved, grads)
        return loss

    grads, losses = workers.gradients(compute, microbatches(ids, weights))
    return grads, sum(losses)
