"""Checks of chapter 10."""

from dataclasses import replace
from unittest.mock import PropertyMock, patch

import numpy as np

from lessons.figures.ch10 import relative_errors, spoil
from lessons.grading import Exercise, Wrong
from minimoe.config import PRESETS, ModelConfig
from minimoe.gradcheck import randomize
from minimoe.model import MiniMoE

BLOCKS = 12
LAYERS = ["attention_norm", "attention", "ffn_norm", "moe"]


def check_count(count) -> None:
    odd = ModelConfig(vocabulary=300, width=24, blocks=5, heads=3, experts=7, experts_per_token=3, expert_width=10, streams=3)
    right = {config: tuple(MiniMoE(config, None).parameter_counts().values()) for config in (PRESETS["full"], PRESETS["nano"], odd)}
    built = Wrong("count the numbers from the sizes, without building a model")
    asked = Wrong("count the numbers from the sizes, without config.parameters")
    with (
        patch.object(MiniMoE, "__init__", side_effect=built),
        patch.object(ModelConfig, "parameters", new_callable=PropertyMock, side_effect=asked),
    ):
        for config, (total, active) in right.items():
            answer = count(config)
            if not isinstance(answer, tuple) or len(answer) != 2:
                raise Wrong(f"expected a tuple (total, active), got {answer!r}")
            if answer[0] != total:
                raise Wrong(f"the total is {answer[0]:,} where it should be {total:,}: off by {answer[0] - total:+,}{guess(answer[0] - total, config)}")
            if answer[1] != active:
                off, expert = answer[1] - active, 3 * config.width * config.expert_width
                why = " (the shared expert is met by every token)" if off == -config.blocks * expert else ""
                why = why or (" (the router is read as a whole)" if off < 0 and off % config.width == 0 and -off < config.blocks * expert else "")
                raise Wrong(f"{active:,} parameters are met by one token, not {answer[1]:,}: off by {off:+,}{why}")


def guess(off: int, c: ModelConfig) -> str:
    """Say what a wrong total may have forgotten or counted twice, if it is one of the usual things."""
    expert = 3 * c.width * c.expert_width
    usual = {
        c.vocabulary * c.width: "the head has no matrix of its own",
        -c.width: "is the final norm there?", -c.blocks * 2 * c.streams: "are the stream weights there?",
        -c.blocks * c.streams: "a block has two weights a stream", -c.blocks * expert: "is the shared expert there?",
        -c.blocks * c.width * c.experts: "is the router there?", -c.blocks * c.width: "a block has two norms",
        -c.blocks * (c.experts + 1) * c.width * c.expert_width: "an expert's way up has a gate and a value",
        -c.blocks * c.width**2: "is the matrix out of attention there?",
    }
    return f" ({usual[off]})" if off in usual else ""


def check_backward(backward) -> None:
    rng = np.random.default_rng(0)
    model = randomize(MiniMoE(replace(PRESETS["micro"], streams=3), None, np.float64), rng)
    ids = rng.integers(0, model.config.vocabulary, (2, 9))
    ids[:, -2:] = ids[:, :2]                                              # tokens seen twice
    logits, saved = model.forward(ids)
    dlogits = rng.standard_normal(logits.shape)
    dprobs = [rng.standard_normal(block.moe.probs.shape) for block in saved.blocks]
    names = {name: p for name, p in model.named_parameters()}
    right, grads = model.zero_grads(), model.zero_grads()
    model.backward(dlogits, saved, right, dprobs)
    with patch.object(MiniMoE, "backward", side_effect=Wrong("call the backwards of the layers, not model.backward")):
        backward(model, dlogits, saved, grads, dprobs)

    def wrong(grads, other) -> list[str]:
        return [name for name, p in names.items() if np.abs(grads[p] - other[p]).max() > 1e-9 * max(1, np.abs(other[p]).max())]

    failed = wrong(grads, right)
    if failed:
        raise Wrong(f"{len(failed)} of {len(names)} gradients {'is' if len(failed) == 1 else 'are'} wrong{why(model, grads, right, failed, names, saved, dlogits)}")
    backward(model, dlogits, saved, grads, dprobs)
    if wrong({p: g / 2 for p, g in grads.items()}, right):
        raise Wrong("a second backward into the same `grads` must add to the first, and it does not")


def why(model, grads, right, failed, names, saved, dlogits) -> str:
    """Say what the usual cause of these failures is."""
    embedding, norm, last = model.embedding.weight, "final_norm.weight", f"blocks.{len(model.blocks) - 1}.moe.experts.up"
    if failed == ["embedding.weight"]:
        unread = np.ones(len(embedding.data), bool)
        unread[saved.embedding] = False
        if np.abs(grads[embedding][unread] - right[embedding][unread]).max() > 1e-9:
            return ": embedding.weight alone. The rows of ids that nobody read are wrong, so the head's part is missing"
        return ": embedding.weight alone, in the rows that were read. So the lookup's part is wrong: every stream began as a copy, and copies add up"
    if not any(grads[p].any() for p in grads):
        return ": they are all zero"
    if norm in failed:
        return ", from the final norm down. Is the head's dx handed to it?"
    if last in failed:
        p = names[last]
        ratio = np.vdot(grads[p], right[p]) / np.vdot(right[p], right[p])
        if np.allclose(grads[p], ratio * right[p]):
            return f", below the final norm: {ratio:.3g} times too large. What does the mean over {model.config.streams} streams do to a gradient?"
        return ", from the last block down. Which block comes first in backward, and which dprobs are its own?"
    return f". Does each block get its own dprobs? The first in the order of backward is in block {max(int(name.split('.')[1]) for name in failed if '.' in name and name.startswith('blocks'))}"


def check_culprit(culprit) -> None:
    rng = np.random.default_rng(3)
    model = randomize(MiniMoE(replace(PRESETS["micro"], blocks=BLOCKS), None, np.float64), rng)
    ids = rng.integers(0, model.config.vocabulary, (1, 7))
    dlogits = rng.standard_normal((1, 7, model.config.vocabulary))
    places = ["head", "final_norm", *(f"blocks.{i}.{layer}" for i in (11, 10, 9, 2, 0) for layer in LAYERS)]
    for place in places:
        layer = model
        for part in place.split("."):
            layer = layer[int(part)] if part.isdigit() else getattr(layer, part)
        errors = relative_errors(model, ids, dlogits, spoil(layer, 1.03))
        failed = {name for name, error in errors.items() if error > 1e-6}
        answer = culprit(set(failed), BLOCKS)
        if answer != place:
            raise Wrong(f"the layer is {place}, and the answer {answer!r}; {len(failed)} tensor{'s' * (len(failed) > 1)} failed{near_miss(place, answer)}")


def near_miss(place: str, answer) -> str:
    if place == "blocks.0.attention_norm":
        return ", the embedding alone: blocks.0.read has no gradient that could be wrong"
    if place == "head":
        return ": the final norm's own weight is wrong too, so the fault is above it"
    if place == "final_norm":
        return ": its own weight is right, and the last block's `write` has no gradient that could be wrong"
    if not isinstance(answer, str):
        return ""
    if answer.split(".")[:2] == place.split(".")[:2]:
        return ". The right block; its layer's own weights are right, what it hands down is not"
    if answer.startswith("blocks.") and place.startswith("blocks."):
        return ". Backward begins with the block of the largest number; as text, 9 comes after 11"
    return ""


EXERCISES = [
    Exercise("count", 10, check_count, "List what a block holds, with the shape of each. Where does the head's matrix come from?"),
    Exercise("backward", 20, check_backward, "Read `forward` from its last line to its first. A fork becomes a sum, a sum becomes a fork."),
    Exercise("culprit", 20, check_culprit, "Find the first tensor, in the order of backward, that failed. Which layer gave it its gradient?"),
]
