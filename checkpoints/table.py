"""Print the tables of checkpoints/README.md from checkpoints/results/.

    python checkpoints/table.py
"""

import json
from pathlib import Path

import numpy as np

from minimoe.coding.scoring import bootstrap
from minimoe.coding.tasks import FAMILIES, TRAINED, UNTRAINED

RESULTS = Path(__file__).parent / "results"
RECIPES = {"before": "before", "rl": "RL alone", "replay": "replay alone", "both": "RL with replay"}
MORE = {"more-seconds": "57 more steps of pretraining", "more-updates": "95 more steps of pretraining"}


def solved(name: str) -> np.ndarray:
    """Return what each model in a receipt of `minimoe.evaluate` solved, (models, families, tasks)."""
    models = json.loads((RESULTS / f"{name}.json").read_text())["after"]["models"]
    passed = np.array([[task["greedy"]["status"] == "passed" for task in model["tasks"]] for model in models])
    return passed.reshape(len(models), len(FAMILIES), -1)


def row(label: str, passed: np.ndarray) -> str:
    """Return a line of the table: tasks solved, a mean over the models."""
    families = dict(zip(FAMILIES, passed.sum(axis=2).mean(axis=0)))
    totals = passed.sum(axis=(1, 2))
    low, high = (passed[0].size * bound for bound in bootstrap(passed.mean(axis=0).reshape(-1)))
    extremes = sorted({totals.min(), totals.max()})
    cells = [f"{totals.mean():.1f}", "-".join(map(str, extremes)), f"{low:.0f} to {high:.0f}"]
    cells += [f"{sum(families[name] for name in names):.1f}" for names in (TRAINED, UNTRAINED)]
    cells += [f"{families[name]:.1f}" for name in FAMILIES]
    return "| " + " | ".join([label, *cells]) + " |"


def table(rows: dict[str, np.ndarray]) -> str:
    """Return the lines of the table."""
    head = ["", "solved", "seeds", "95%", "trained", "untrained", *FAMILIES]
    return "\n".join(["| " + " | ".join(head) + " |", "|---" * len(head) + "|", *(row(*one) for one in rows.items())])


def tables() -> dict[str, str]:
    """Return each table of checkpoints/README.md, by what it is of."""
    of = {(name, p): solved(f"{name}-{p}") for name in RECIPES for p in range(3)}
    result = {"released base": table({label: of[name, 0] for name, label in RECIPES.items()})}
    for p in (1, 2):
        result[f"pretraining seed {p}"] = table({label: of[name, p] for name, label in RECIPES.items()})
    result["all"] = table({label: np.concatenate([of[name, p] for p in range(3)]) for name, label in RECIPES.items()})
    result["more"] = table({label: solved(name) for name, label in MORE.items()})
    return result


if __name__ == "__main__":
    for name, lines in tables().items():
        print(f"{name}\n\n{lines}\n")
