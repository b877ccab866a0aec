"""Solutions of chapter 10."""

from collections.abc import Sequence

import numpy as np

from minimoe.config import ModelConfig
from minimoe.layers.layer import Grads
from minimoe.model import MiniMoE, Saved


def count(config: ModelConfig) -> tuple[int, int]:
    """The number of heads does not matter: H heads of width D / H make D rows of q, of k and of v."""
    D, E, F = config.width, config.experts, config.expert_width
    expert = 2 * F * D + D * F                                            # gate and value up, one down
    attention = 3 * D * D + D * D
    block = 2 * config.streams + 2 * D + attention + E * D + E * expert + expert
    total = config.vocabulary * D + config.blocks * block + D             # the tied head is no second matrix
    idle = config.blocks * (E - config.experts_per_token) * expert        # the router itself is met as a whole
    return total, total - idle


def backward(model: MiniMoE, dlogits: np.ndarray, saved: Saved, grads: Grads, dprobs: Sequence[np.ndarray]) -> None:
    dh = model.head.backward(dlogits, saved.head, grads)
    dmean = model.final_norm.backward(dh, saved.final_norm, grads)
    S = model.config.streams
    dstreams = np.stack([dmean / S] * S)                                  # mean = sum / S: a sum forks, with its factor
    for i in reversed(range(len(model.blocks))):
        dstreams = model.blocks[i].backward(dstreams, saved.blocks[i], grads, dprobs[i])
    model.embedding.backward(dstreams.sum(axis=0), saved.embedding, grads)     # copies: a fork sums. Adds to the head's


def culprit(failed: set[str], blocks: int) -> str:
    """Go the way of backward to the first tensor that failed: the culprit is what comes right before it.

    Which tensor that is says which layer handed its gradient down. Two tensors never fail, having no gradient: the last
    block's `write`, so a fault of the final norm shows first in the last block's experts; and blocks.0.read, so a fault
    of the attention norm of block 0 shows in the embedding alone.
    """
    if "final_norm.weight" in failed:
        return "head"
    handed_down_by = {"ffn_norm.": "moe", "attention.": "ffn_norm", "attention_norm.": "attention", "read": "attention_norm"}
    for i in reversed(range(blocks)):
        inside = {name.removeprefix(f"blocks.{i}.") for name in failed if name.startswith(f"blocks.{i}.")}
        if any(name.startswith("moe.") for name in inside):
            return "final_norm"
        for first, layer in handed_down_by.items():                       # in the order of backward
            if any(name.startswith(first) for name in inside):
                return f"blocks.{i}.{layer}"
    return "blocks.0.attention_norm"
