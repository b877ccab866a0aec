"""Exercises of chapter 10. Write the bodies, then: python -m lessons.grade 10"""

from collections.abc import Sequence

import numpy as np

from minimoe.config import ModelConfig
from minimoe.layers.layer import Grads
from minimoe.model import MiniMoE, Saved


def count(config: ModelConfig) -> tuple[int, int]:
    """Return how many parameters a model of these sizes has, and how many of them one token meets.

    From the sizes alone: width, heads, blocks, experts, experts_per_token, expert_width, streams, vocabulary. No model
    may be built, and `config.parameters` may not be read. (1234, 1000) is a tuple of two whole numbers.
    """
    raise NotImplementedError


def backward(model: MiniMoE, dlogits: np.ndarray, saved: Saved, grads: Grads, dprobs: Sequence[np.ndarray]) -> None:
    """Add to `grads` the gradient of every parameter of the model: what `model.backward` does, where all is trained.

    dlogits (B,T,V); saved is what model.forward returned; dprobs has, for each block, the gradient (N,E) of its router's
    probabilities. The backwards of the model's layers may be called (model.head, model.final_norm, model.blocks[i],
    model.embedding); model.backward may not.
    """
    raise NotImplementedError


def culprit(failed: set[str], blocks: int) -> str:
    """Return the layer whose backward is broken, by the names of all the tensors whose gradients are wrong.

    One layer of a model of `blocks` blocks hands down a wrong gradient of its input; the gradients of its own weights are
    right, and so is everything else. It is "head", "final_norm" or, in one block i, "blocks.i.attention_norm",
    "blocks.i.attention", "blocks.i.ffn_norm" or "blocks.i.moe". `failed` holds names such as "blocks.2.attention.out.weight".
    """
    raise NotImplementedError
