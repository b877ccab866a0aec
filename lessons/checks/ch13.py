"""Checks of chapter 13, and the faults that it plants in decoding."""

from unittest.mock import patch

import numpy as np

from lessons.figures.ch13 import kept
from lessons.grading import Exercise, Wrong
from lessons.mutants import Mutant, planted
from minimoe.config import PRESETS, ModelConfig
from minimoe.gradcheck import randomize
from minimoe.model import MiniMoE

LINEAR, SPARSE, LAYER = (f"minimoe.layers.{name}" for name in ("linear_attention", "sparse_attention", "layer"))
FAULTS = [
    Mutant(name, "decoding", module, line, broken, why)
    for name, module, line, broken, why in [
        ("position-unused", LINEAR, "self.rope.forward(phi, state.position)", "self.rope.forward(phi)",
         "Every step is turned as if it were the first. In one step, nothing is wrong."),
        ("sparse-position-unused", SPARSE, "self.rope.forward(qkv[:, :, :2], state.position)", "self.rope.forward(qkv[:, :, :2])",
         "Every step is turned as if it were the first. In one step, nothing is wrong."),
        ("position-by-one", LINEAR, "state.position + T, kv", "state.position + 1, kv",
         "A step counts as one position, however many it read. One position at a time, that is right."),
        ("sparse-position-by-one", SPARSE, "state.position + T, keys", "state.position + 1, keys",
         "A step counts as one position, however many it read. One position at a time, that is right."),
        ("kv-not-carried", LINEAR, "kv, past, chunks = state.kv, state.z, []", "kv, past, chunks = np.zeros_like(state.kv), state.z, []",
         "The numerator forgets the past and the denominator does not: outputs shrink as the text grows."),
        ("z-not-carried", LINEAR, "kv, past, chunks = state.kv, state.z, []", "kv, past, chunks = state.kv, np.zeros_like(state.z), []",
         "The denominator forgets the past and the numerator does not: outputs grow with the text."),
        ("only-top-k-kept", SPARSE, "SparseState(state.position + T, keys, values)",
         "SparseState(state.position + T, keys[:, -self.top_k :], values[:, -self.top_k :])",
         "The last top_k keys are kept. The best top_k of a later query need not be among them."),
        ("keys-not-turned", SPARSE, "SparseState(state.position + T, keys, values)",
         "SparseState(state.position + T, np.concatenate([state.keys, qkv[:, :, 1]], axis=1), values)",
         "The keys are kept as they were before the rotation, and are not turned later either."),
        ("rows-not-exchanged", LAYER, "array[rows] for array", "array[: len(rows)] for array",
         "`take` gives the first rows whichever were asked for: a sample goes on from another one's past."),
        ("padding-attended", SPARSE, "(age >= 0) & (age <= read)", "(age >= 0) & (age <= L)",
         "Rows of different lengths: the zeros before a shorter row's first key have the score 0, and get attention."),
        ("padded-on-the-right", SPARSE, "np.concatenate([np.zeros((len(x), length - x.shape[1], *x.shape[2:]), x.dtype), x], axis=1)",
         "np.concatenate([x, np.zeros((len(x), length - x.shape[1], *x.shape[2:]), x.dtype)], axis=1)",
         "The zeros of a shorter row stand behind its keys, where its latest positions should be."),
        ("state-changed-in-place", LINEAR, "state.position + T, kv", "np.add(state.position, T, out=state.position), kv",
         "The step counts on in the state that it was given, which somebody may still use: a second step from it starts too late."),
    ]
]


def ways(model: MiniMoE, ids: np.ndarray) -> dict[str, float]:
    """Return how far `step`, called in several ways, is from forward on ids (3,T), T >= 12, or from itself: the largest difference."""
    T, whole = ids.shape[1], model.forward(ids)[0]

    def go_on(t: int, state=None) -> float:
        off = 0.0
        for t in range(t, T):
            y, state = model.step(ids[:, t : t + 1], state)
            off = max(off, np.abs(y[:, 0] - whole[:, t]).max())
        return off

    off = {"prompt": np.abs(model.step(ids)[0] - whole).max(), "ones": go_on(0), "split": go_on(9, model.step(ids[:, :9])[1])}
    rows, lengths = [2, 0], [4, 9, 6]
    _, state = model.step(ids[:, :1])
    y, _ = model.step(ids[rows, 1:2], [part.take(rows) for part in state])
    off["take"] = np.abs(y[:, 0] - whole[rows, 1]).max()
    alone = [model.step(ids[i : i + 1, :n])[1] for i, n in enumerate(lengths)]
    y, _ = model.step(np.array([[ids[i, n]] for i, n in enumerate(lengths)]), [type(parts[0]).join(parts) for parts in zip(*alone)])
    off["join"] = max(np.abs(y[i, 0] - whole[i, n]).max() for i, n in enumerate(lengths))
    _, state = model.step(ids[:, :9])
    off["twice"] = np.abs(model.step(ids[:, 9:10], state)[0] - model.step(ids[:, 9:10], state)[0]).max()
    return off


def check_state_size(state_size) -> None:
    odd = ModelConfig(width=24, blocks=7, sparse_every=3, heads=3, experts=3, expert_width=4, streams=2)
    for config in odd, PRESETS["nano"], PRESETS["micro"]:
        right = kept(config, [1, 5, 40])
        with patch.object(MiniMoE, "__init__", side_effect=Wrong("count from the sizes, without building a model")):
            answers = [state_size(config, T) for T in (1, 5, 40)]
        for T, answer, size in zip((1, 5, 40), answers, right):
            if answer != size:
                says = f"{config.blocks} blocks, every {config.sparse_every}th sparse, {config.heads} heads of {config.head_width}: after {T} positions"
                try:
                    slope = (answers[2] - answers[1]) / (right[2] - right[1])
                except TypeError:
                    raise Wrong(f"{says} expected a whole number, got {answer!r}") from None
                why = "It grows as it should, so the part that does not grow is wrong" if slope == 1 else f"It grows {slope:.3g} times as fast as it should"
                raise Wrong(f"{says} the state holds {size:,} numbers, not {answer:,}. {why}")


def numbers_in(state) -> int:
    """Return how many numbers a state of any form holds."""
    if isinstance(state, dict):
        return sum(map(numbers_in, state.values()))
    if isinstance(state, (list, tuple)):
        return sum(map(numbers_in, state))
    return int(np.size(state))


def check_forgetful_step(forgetful_step) -> None:
    rng = np.random.default_rng(0)
    T, K, gamma = 9, 4, 0.7
    q, k, v = rng.standard_normal((3, T, K))
    distance = np.arange(T)[:, None] - np.arange(T)

    def oracle(fade: np.ndarray, include_self: bool = True) -> np.ndarray:
        weights = np.where(distance >= (0 if include_self else 1), fade, 0.0)
        return (weights * (q @ k.T)) @ v

    right = oracle(gamma ** np.maximum(distance, 0))
    usual = {
        "the new term has faded too, and it stands at distance 0": gamma * right,
        "nothing has faded": oracle(np.ones((T, T))),
        "position t itself is missing from the sum": oracle(gamma ** np.maximum(distance, 0), include_self=False),
        "the past fades once, not once for each position": oracle(np.where(distance == 0, 1, gamma)),
        "out_t is computed before k_t v_t is added, or the past has faded once too little": oracle(gamma ** np.maximum(distance - 1, 0), include_self=False),
    }
    state, states, answers, sizes = None, [None], [], []
    for t in range(T):
        y, state = forgetful_step(q[t].copy(), k[t].copy(), v[t].copy(), gamma, state)
        if np.shape(y) != (K,):
            raise Wrong(f"out_t has the shape {np.shape(y)}; it should be ({K},)")
        answers.append(np.array(y, float))
        states.append(state)
        sizes.append(numbers_in(state))
    answers = np.array(answers)
    if not np.abs(answers - right).max() < 1e-9:
        for what, wrong in usual.items():
            if np.abs(answers - wrong).max() < 1e-9:
                raise Wrong(f"off by {np.abs(answers - right).max():.2g}: {what}")
        at = int(np.argmax(np.abs(answers - right).max(axis=1) > 1e-9))
        raise Wrong(f"off by {np.abs(answers - right).max():.2g}; the first wrong position is t = {at}")
    if sizes[-1] > sizes[0]:
        raise Wrong(f"the state grows: {sizes[0]} numbers after the first position, {sizes[-1]} after {T}")
    for t in (3, 6):
        y, _ = forgetful_step(q[t], k[t], v[t], gamma, states[t])
        if not np.abs(y - right[t]).max() < 1e-9:
            raise Wrong(f"a second step from the state before position {t} gives another result: the first one changed that state in place")


def check_check_decoding(check_decoding) -> None:
    model = randomize(MiniMoE(PRESETS["micro"], None, np.float64), np.random.default_rng(4))
    try:
        check_decoding(model)
    except AssertionError as error:
        raise Wrong(f"the model as it stands is right, and your test fails it: {' '.join(str(error).split())[:200]}") from None
    missed = []
    for fault in FAULTS:
        with planted(fault):
            try:
                check_decoding(model)
            except AssertionError:
                continue
        missed.append(fault)
    if missed:
        raise Wrong(f"{len(FAULTS) - len(missed)} of {len(FAULTS)} caught; missed: {', '.join(f.name for f in missed)}. The first: {missed[0].why}")


EXERCISES = [
    Exercise("state_size", 10, check_state_size, "Which arrays are in LinearState and in SparseState, and which of them grows?"),
    Exercise("forgetful_step", 20, check_forgetful_step, "Write M_t for the sum, and find what M_{t-1} must be multiplied by."),
    Exercise(
        "check_decoding", 25, check_check_decoding,
        "A prompt of several ids, then single ones, longer than top_k; then rows exchanged, rows of three lengths joined, and one state used twice.",
    ),
]
