"""How many tasks a model solves."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from minimoe.coding.tasks import Task
from minimoe.generate import generate
from minimoe.model import MiniMoE
from minimoe.tokenizer import BOS, EOS, completion_text, encode

MAX_NEW_TOKENS = 32


class Attempt(NamedTuple):
    task: Task
    completion: str
    solved: bool


def greedy(model: MiniMoE, tasks: Sequence[Task]) -> list[Attempt]:
    """Let the model write each task's function, taking the likeliest token each time.

    A task counts as solved when the completion is its canonical solution and ends by itself; nothing generated is run.
    """
    completions = generate(model, [[BOS] + encode(task.prompt) for task in tasks], MAX_NEW_TOKENS)
    return [
        Attempt(task, completion_text(ids), ids[-1] == EOS and completion_text(ids) == task.solution)
        for task, ids in zip(tasks, completions)
    ]


def solved_by_family(attempts: Sequence[Attempt]) -> dict[str, int]:
    """Return how many of each family's tasks are solved, in the order of the tasks."""
    solved = Counter(attempt.task.family for attempt in attempts if attempt.solved)
    return {family: solved[family] for family in dict.fromkeys(attempt.task.family for attempt in attempts)}
