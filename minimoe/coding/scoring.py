"""How many tasks a model solves, and how sure one can be of it."""

from collections import Counter
from collections.abc import Sequence
from math import comb
from typing import NamedTuple

import numpy as np

from minimoe.coding.tasks import Task
from minimoe.coding.verifier import Verdict, verify
from minimoe.generate import generate
from minimoe.model import MiniMoE
from minimoe.tokenizer import BOS, EOS, FIRST_BYTE, completion_text, encode

MAX_NEW_TOKENS = 32
DEV_TASKS = 8    # of each family, that a run of training asks its model now and then


class Attempt(NamedTuple):
    """A completion of a task's prompt, and what became of it."""

    task: Task
    completion: str
    verdict: Verdict

    @property
    def solved(self) -> bool:
        return self.verdict.status == "passed"


def judge(task: Task, ids: Sequence[int]) -> Verdict:
    """Judge a completion of the task's prompt. One that does not end by itself, with EOS, is invalid whatever it says.

    So is one with a special id inside: no text shows it.
    """
    if not len(ids) or ids[-1] != EOS:
        return Verdict("invalid", 0, len(task.cases), "did not end")
    if min(ids[:-1], default=FIRST_BYTE) < FIRST_BYTE:
        return Verdict("invalid", 0, len(task.cases), "has a special id inside")
    return verify(task, task.prompt + completion_text(ids))


def attempt(
    model: MiniMoE, tasks: Sequence[Task], samples: int = 1, temperature: float = 0.0, seed: int = 0
) -> list[list[Attempt]]:
    """Let the model write each task's function `samples` times; return the attempts, task by task."""
    prompts = [[BOS] + encode(task.prompt) for task in tasks for _ in range(samples)]
    completions = iter(generate(model, prompts, MAX_NEW_TOKENS, temperature, seed))
    return [
        [Attempt(task, completion_text(ids), judge(task, ids)) for _, ids in zip(range(samples), completions)]
        for task in tasks
    ]


def greedy(model: MiniMoE, tasks: Sequence[Task]) -> list[Attempt]:
    """Let the model write each task's function once, taking the likeliest token each time."""
    return [only for (only,) in attempt(model, tasks)]


def solved_by_family(attempts: Sequence[Attempt]) -> dict[str, int]:
    """Return how many of each family's tasks are solved, in the order of the tasks."""
    solved = Counter(attempt.task.family for attempt in attempts if attempt.solved)
    return {family: solved[family] for family in dict.fromkeys(attempt.task.family for attempt in attempts)}


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """Return the unbiased estimate that one of k samples passes, from `passed` of `samples` (arXiv 2107.03374, eq. 1)."""
    return 1 - comb(samples - passed, k) / comb(samples, k)


def mcnemar(gains: int, losses: int) -> float:
    """Return the exact two-sided p of McNemar's test: how likely a split of the changes at least so uneven is by chance."""
    changes = gains + losses
    tail = sum(comb(changes, i) for i in range(min(gains, losses) + 1)) / 2**changes
    return min(1.0, 2 * tail)


def bootstrap(values: Sequence[float] | np.ndarray, resamples: int = 10_000, seed: int = 0) -> tuple[float, float]:
    """Return the 95% interval of the mean of `values`, one a task, over tasks drawn again with replacement (percentiles)."""
    of_tasks = np.asarray(values, np.float64)
    drawn = np.random.default_rng(seed).integers(0, len(of_tasks), (resamples, len(of_tasks)))
    low, high = np.percentile(of_tasks[drawn].mean(axis=1), [2.5, 97.5])
    return float(low), float(high)
