"""Pretraining batches: examples packed end to end in rows, with a mask of what the model must learn to produce."""

from collections.abc import Sequence

import numpy as np

from minimoe.coding.tasks import FAMILIES, sample_task
from minimoe.tokenizer import BOS, EOS, encode

STREAM = 1  # keeps these draws apart from the others made with the same seed


def pack(
    rng: np.random.Generator, rows: int, length: int, split: str = "train", families: Sequence[str] = tuple(FAMILIES)
) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of examples, each BOS, prompt, solution, EOS; every row starts with a BOS and is cut at `length` exactly.

    They are ids (rows, length) int64 and solution (rows, length) bool. `solution` is aligned with `ids`: it marks the
    tokens of each solution and its EOS. With inputs ids[:, :-1] and targets ids[:, 1:], the targets' mask is
    solution[:, 1:]. Raises `InputError` for a split that is not sampled from, and for an unknown family.
    """
    ids = np.empty((rows, length), np.int64)
    solution = np.empty((rows, length), bool)
    for row in range(rows):
        tokens: list[int] = []
        mask: list[bool] = []
        while len(tokens) < length:
            task = sample_task(split, rng, families)
            given, produced = [BOS] + encode(task.prompt), encode(task.solution) + [EOS]
            tokens += given + produced
            mask += [False] * len(given) + [True] * len(produced)
        ids[row], solution[row] = tokens[:length], mask[:length]
    return ids, solution


def batch(seed: int, step: int, rows: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the batch of a step, as `pack` does: a function of seed and step alone, so a resumed run redraws it."""
    return pack(np.random.default_rng([seed, STREAM, step]), rows, length)
