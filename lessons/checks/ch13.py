"""Checks of chapter 13."""

from unittest.mock import patch

import numpy as np

from lessons.figures.ch13 import kept
from lessons.grading import Exercise, Wrong, catches_all
from lessons.mutants import MUTANTS
from minimoe.config import PRESETS, ModelConfig
from minimoe.gradcheck import randomize
from minimoe.model import MiniMoE

FAULTS = [mutant for mutant in MUTANTS if mutant.layer == "decoding"]


def check_state_size(state_size) -> None:
    odd = ModelConfig(width=24, blocks=7, sparse_every=3, heads=3, experts=3, expert_width=4, streams=2)
    for config in odd, PRESETS["nano"], PRESETS["micro"]:
        right = kept(config, [1, 5, 40])
        with patch.object(MiniMoE, "__init__", side_effect=Wrong("count from the sizes, without building a model")):
            answers = [state_size(config, T) for T in (1, 5, 40)]
        for T, answer, size in zip((1, 5, 40), answers, right):
            if answer != size:
                says = f"{config.blocks} blocks, sparse_every = {config.sparse_every}, {config.heads} heads of {config.head_width}: after {T} positions"
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
    catches_all(lambda: check_decoding(model), FAULTS)


EXERCISES = [
    Exercise("state_size", 10, check_state_size, "Which arrays are in LinearState and in SparseState, and which of them grows?"),
    Exercise(
        "forgetful_step", 20, check_forgetful_step,
        "As in the chapter, write S_t for a sum over s, here of gamma^(t - s) k_s v_s^T, and find what S_{t-1} must be multiplied by.",
    ),
    Exercise(
        "check_decoding", 25, check_check_decoding,
        "A prompt of several ids, then single ones, longer than top_k; then rows exchanged, rows of three lengths joined, and one state used twice.",
    ),
]
