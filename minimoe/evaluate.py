"""Say how many tasks a model solves that it never saw.

    python -m minimoe.evaluate checkpoints/pretrain/step-0400
    python -m minimoe.evaluate checkpoints/rloo/last --compare checkpoints/pretrain/step-0085
    python -m minimoe.evaluate runs/*/last          several seeds of one recipe: their mean

greedy: tasks solved by the likeliest completion. any of 8: tasks that one at least of --samples draws solved. pass@k: tasks
that one of k draws solves, on average: an unbiased estimate from all the draws. trained: the families that minimoe.rloo
trains unless told otherwise.
"""

import json
from pathlib import Path
from typing import Any

from minimoe.cli import Parser, non_negative_int, output_file, positive_float, positive_int, run, settle

if __name__ == "__main__":
    settle()    # before NumPy is imported

import numpy as np

from minimoe.coding.scoring import Attempt, attempt, bootstrap, greedy, mcnemar, pass_at_k
from minimoe.coding.tasks import FAMILIES, PER_FAMILY, TRAINED, Task, fixed_tasks
from minimoe.errors import InputError
from minimoe.model import MiniMoE


MOST_TASKS = 2**11    # each of which has a state while it is continued
MOST = 2**17          # completions of a model


class Scores:
    """What the models, by their paths, make of the tasks: arrays (tasks,), means over the models."""

    def __init__(self, models: dict[Path, MiniMoE], tasks: list[Task], samples: int, temperature: float, seed: int):
        self.paths, self.samples = list(models), samples
        self.greedy: list[list[Attempt]] = []                             # for each model, an attempt a task
        self.sampled: list[list[list[Attempt]]] = []                      # for each model, `samples` attempts a task
        for model in models.values():
            self.greedy.append(greedy(model, tasks))
            self.sampled.append(attempt(model, tasks, samples, temperature, seed) if samples else [])

    def columns(self) -> dict[str, np.ndarray]:
        """Return each figure for each task, from 0 to 1."""
        columns = {"greedy": np.mean([[one.solved for one in model] for model in self.greedy], axis=0)}
        if self.samples:
            passed = np.array([[sum(one.solved for one in each) for each in model] for model in self.sampled])
            for k in (k for k in (1, 2, 4) if k < self.samples):
                estimate = np.vectorize(lambda count: pass_at_k(self.samples, int(count), k), otypes=[float])
                columns[f"pass@{k}"] = estimate(passed).mean(axis=0)
            columns[f"any of {self.samples}"] = (passed > 0).mean(axis=0)
        return columns

    def to_json(self) -> list[dict[str, Any]]:
        """Return every prompt, completion and verdict."""

        def record(one: Attempt) -> dict[str, Any]:
            return {"completion": one.completion, **one.verdict._asdict()}

        return [
            {
                "checkpoint": str(path),
                "tasks": [
                    {"name": first.task.name, "prompt": first.task.prompt, "greedy": record(first)}
                    | ({"samples": [record(one) for one in sampled[i]]} if sampled else {})
                    for i, first in enumerate(attempts)
                ],
            }
            for path, attempts, sampled in zip(self.paths, self.greedy, self.sampled)
        ]


def rows(tasks: list[Task]) -> dict[str, np.ndarray]:
    """Return which tasks each row of the table counts: a family, the trained ones, the others, all."""
    family = np.array([task.family for task in tasks])
    groups = {name: family == name for name in FAMILIES}
    trained = np.isin(family, TRAINED)
    return groups | {"trained": trained, "untrained": ~trained, "all": np.ones(len(tasks), bool)}


def table(scores: Scores, tasks: list[Task]) -> tuple[str, dict[str, dict[str, float]]]:
    """Return the figures as text, and as numbers: row -> column -> tasks solved."""
    columns, figures = scores.columns(), {}
    lines = ["  ".join([f"{'':12}", "tasks", *(f"{name:>8}" for name in columns)])]
    for name, counted in rows(tasks).items():
        figures[name] = {"tasks": int(counted.sum())} | {c: float(v[counted].sum()) for c, v in columns.items()}
        lines.append("  ".join([f"{name:12}", *(f"{v:>{5 if c == 'tasks' else 8}.4g}" for c, v in figures[name].items())]))
    low, high = bootstrap(columns["greedy"])
    figures["greedy_interval"] = {"low": low * len(tasks), "high": high * len(tasks)}
    lines.append(f"greedy, all: 95% interval over tasks {low * len(tasks):.1f} to {high * len(tasks):.1f}")
    return "\n".join(lines), figures


def compare(before: Scores, after: Scores) -> tuple[str, dict[str, float]]:
    """Return how the greedy results differ, as text and as numbers."""
    one, other = before.columns()["greedy"], after.columns()["greedy"]
    difference = other - one
    low, high = (len(one) * bound for bound in bootstrap(difference))
    figures = {"difference": float(difference.sum()), "low": low, "high": high}
    text = f"difference {difference.sum():+.4g} tasks, 95% interval over tasks {low:+.1f} to {high:+.1f}"
    if len(before.paths) == len(after.paths) == 1:
        gains, losses = int((difference > 0).sum()), int((difference < 0).sum())
        figures |= {"gains": gains, "losses": losses, "mcnemar_p": mcnemar(gains, losses)}
        text += f"; {gains} gained, {losses} lost, exact McNemar p = {figures['mcnemar_p']:.2g}"
    return text, figures


def main() -> None:
    parser = Parser(description=__doc__)
    option = parser.add_argument
    option("checkpoints", nargs="+", type=Path, metavar="CHECKPOINT", help="a model's folder; several: their mean")
    option("--compare", nargs="+", type=Path, metavar="OTHER", help="a model, or several, to compare with: what was before")
    option("--split", choices=list(PER_FAMILY), default="confirm", help="confirm, on which nothing is trained or chosen, or dev")
    option("--per-family", type=positive_int, help="tasks a family (default: 32 of dev, 8 of confirm)")
    option("--samples", type=non_negative_int, default=8, help="draws a task, for pass@k; 0: greedy alone")
    option("--temperature", type=positive_float, default=0.35, help="of the draws")
    option("--seed", type=non_negative_int, default=0, help="of the draws")
    option("--json", type=output_file, metavar="FILE", help="also write every completion and verdict there")
    args = parser.parse_args()
    tasks = fixed_tasks(args.split, args.per_family)
    if len(tasks) > MOST_TASKS:
        raise InputError(f"--per-family {args.per_family}: {len(tasks):,} tasks are more than {MOST_TASKS:,}")
    if len(tasks) * args.samples > MOST:
        raise InputError(f"--samples {args.samples}: {len(tasks) * args.samples:,} completions are more than {MOST:,}")
    models, others = [
        {path: MiniMoE.from_pretrained(path) for path in paths} for paths in (args.checkpoints, args.compare or [])
    ]                                                                     # all of them first: the last may be missing
    after = Scores(models, tasks, args.samples, args.temperature, args.seed)
    before = Scores(others, tasks, args.samples, args.temperature, args.seed) if others else None
    result: dict[str, Any] = {"split": args.split, "temperature": args.temperature, "seed": args.seed}
    for name, scores in [("before", before), ("after", after)] if before else [("after", after)]:
        text, figures = table(scores, tasks)
        print(f"{', '.join(map(str, scores.paths))} on {args.split}\n{text}\n")
        result[name] = {"figures": figures, "models": scores.to_json()}
    if before:
        text, result["comparison"] = compare(before, after)
        print(text)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    run(main)
