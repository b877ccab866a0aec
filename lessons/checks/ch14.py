"""Checks of the exercises of chapter 14."""

from collections.abc import Callable
from typing import Any

import numpy as np

from lessons.grading import Exercise, Wrong, compare
from minimoe.tokenizer import BOS, EOS, PAD
from minimoe.training.losses import leave_one_out


def check_of_rows(of_rows: Callable[..., Any]) -> None:
    for rewards, counts in [([1, 0, -0.1, 0], [1, 2, 4, 1]), ([1, 0], [3, 5]), ([0.5], [6]), ([1, -0.1], [1, 1])]:
        rewards, counts = np.array(rewards, float), np.array(counts)
        starts, G = np.cumsum(counts) - counts, counts.sum()
        right, answer = leave_one_out(rewards.repeat(counts))[starts], of_rows(rewards.copy(), counts.copy())
        what = f"rewards {rewards.tolist()} drawn {counts.tolist()} times"
        wrong_ways = {
            "that is the mean of all, the sample itself included": rewards - counts @ rewards / G,
            "that leaves out the whole row; its equals are among the others":
                rewards - (counts @ rewards - counts * rewards) / np.maximum(G - counts, 1),
            "that compares rows, each counted once": rewards - (rewards.sum() - rewards) / max(len(rewards) - 1, 1),
            "that is multiplied by the counts; the advantage of one sample is asked for": counts * right,
        }
        for why, wrong in wrong_ways.items():
            if np.shape(answer) == right.shape and np.allclose(answer, wrong) and not np.allclose(wrong, right):
                raise Wrong(f"{what}: {why}")
        compare(what, answer, right)
    many = np.array([10**13, 3 * 10**13])
    compare(f"rewards [1, 0] drawn {many.tolist()} times", of_rows(np.array([1.0, 0]), many), [0.75, -0.25])


WAYS: list[tuple[str, bool, Callable[[np.ndarray], np.ndarray]]] = [
    ("reward - mean of the others", True, leave_one_out),
    ("reward alone", True, lambda r: r.copy()),
    ("reward - 0.3", True, lambda r: r - 0.3),
    ("reward - the reward of the sample before", True, lambda r: r - np.roll(r, 1)),
    ("reward - the largest of the others", True, lambda r: r - np.array([np.delete(r, i).max() for i in range(len(r))])),
    ("reward - mean of all", False, lambda r: r - r.mean()),
    ("reward - the largest of all", False, lambda r: r - r.max()),
    ("reward - median of all", False, lambda r: r - np.median(r)),
    ("(reward - mean of all) / deviation", False, lambda r: (r - r.mean()) / np.maximum(r.std(), 1e-12)),
    ("reward - mean of the others, if that is above 0", False, lambda r: np.maximum(leave_one_out(r), 0)),
    ("1.001 times the reward", False, lambda r: 1.001 * r),
    ("right only in groups of three", False, lambda r: leave_one_out(r) if len(r) == 3 else r - r.mean()),
    ("right only for two prices", False, lambda r: r - (r.mean() if len(set(r.tolist())) > 2 else 0)),
]


def check_is_unbiased(is_unbiased: Callable[..., Any]) -> None:
    for name, right, advantages in WAYS:
        answer = is_unbiased(advantages)
        if not isinstance(answer, (bool, np.bool_)):
            raise Wrong(f"it should return True or False, not {answer!r}")
        if answer and not right:
            raise Wrong(f"{name}: passed, and its expected update is not the gradient")
        if right and not answer:
            raise Wrong(f"{name}: refused, though it is right on average; the baseline does not look at the sample itself")


def check_scored(scored: Callable[..., Any]) -> None:
    ids = np.array([
        [BOS, 90, 91, 50, 51, EOS, PAD, PAD],     # ended by itself
        [BOS, 90, 50, 51, 52, 53, 54, 55],        # cut off
        [BOS, 90, 91, 92, 50, PAD, 52, PAD],      # drew a PAD, was cut off after 52
        [BOS, EOS, 91, EOS, PAD, PAD, PAD, PAD],  # an EOS in the prompt, an EOS drawn at once
        [BOS, 90, PAD, 91, 50, PAD, PAD, PAD],    # a PAD in the prompt, and one drawn last
    ])
    prompt, sampled = np.array([3, 2, 4, 3, 4]), np.array([3, 6, 3, 1, 2])
    right = np.array([
        [0, 0, 1, 1, 1, 0, 0], [0, 1, 1, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1, 0], [0, 0, 1, 0, 0, 0, 0], [0, 0, 0, 1, 1, 0, 0],
    ], bool)
    answer = np.asarray(scored(ids.copy(), prompt.copy(), sampled.copy()))
    if answer.shape != right.shape:
        raise Wrong(f"the shape is {answer.shape}; the targets ids[:, 1:] have {right.shape}")
    answer, targets = answer.astype(bool), ids[:, 1:]
    for shift, why in (1, "one place too late"), (-1, "one place too early"):
        if np.array_equal(answer, np.roll(right, shift, axis=1)):
            raise Wrong(f"all is {why}: target t is id t + 1")
    for row, t in np.argwhere(answer != right):
        token = {EOS: "the EOS", PAD: "the PAD"}.get(targets[row, t], f"the id {targets[row, t]}")
        if right[row, t]:
            raise Wrong(f"row {row}: {token} at target {t} was drawn and is not scored")
        raise Wrong(f"row {row}: {token} at target {t} is scored and was not drawn")


EXERCISES = [
    Exercise("of_rows", 10, check_of_rows, "What is the sum of the rewards of all G samples, from counts? And of all but one?"),
    Exercise("is_unbiased", 25, check_is_unbiased, "One token is enough: three choices, uneven probabilities, three different rewards. "
             "The gradient of log p[k] by the logits is one-hot - p. Try more than one policy and group size."),
    Exercise("scored", 10, check_scored, "At which place of a row does the completion begin, and at which is it over? "
             "Nothing else counts."),
]
