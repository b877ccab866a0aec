"""Draw what runs wrote down: each figure shows one thing, of one run or of several over each other.

    python -m minimoe.plot checkpoints/pretrain
    python -m minimoe.plot checkpoints/rloo checkpoints/rloo-no-replay --out figures --format svg
    python -m minimoe.plot before.json after.json

A RUN is a folder that minimoe.pretrain or minimoe.rloo wrote, or is still writing, or a file of minimoe.evaluate --json.
Curves of the same kind share a figure. Thin lines are the numbers as they are, thick ones a moving mean. Intervals are
those of minimoe.evaluate: the bootstrap over tasks, which has no width where all tasks or none were solved.

Needs matplotlib: pip install 'minimoe[plots]'
"""

import argparse
import json
import math
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from minimoe.cli import Parser, run, settle

if __name__ == "__main__":
    settle()    # before NumPy is imported

import numpy as np

from minimoe.coding.scoring import bootstrap
from minimoe.coding.tasks import FAMILIES
from minimoe.errors import InputError
from minimoe.files import read_json
from minimoe.pretrain import CLIP, DEV_TASKS
from minimoe.training.checkpoint import load_run

FORMATS = "png", "svg"
KINDS = {"pretrain": "loss", "rloo": "reward"}    # what every step of such a run writes down
UNITS = {"pretrain": "step", "rloo": "group"}
WINDOW = 9                                        # steps of the moving mean
COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#333333"]    # told apart by the colour-blind too
DASHES = "-", "--", ":", "-."                     # when the colours are used up
MOST = len(COLORS) * len(DASHES)                  # runs of a kind
STYLE = {
    "font.size": 11, "text.parse_math": False, "figure.constrained_layout.use": True, "lines.linewidth": 1.8,
    "axes.prop_cycle": f"cycler(color={COLORS})", "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "grid.alpha": 0.25, "axes.axisbelow": True, "axes.titlesize": 11, "axes.titlelocation": "left", "legend.frameon": False,
    "savefig.dpi": 200, "svg.hashsalt": "minimoe",
}


class Run(NamedTuple):
    """What there is to draw of a RUN."""

    name: str
    look: dict[str, str]                              # colour and dashes
    records: list[dict[str, Any]]                     # of metrics.jsonl, by step; every number is a float
    solved: dict[Any, dict[str, np.ndarray]]          # by step, or before and after -> family -> each task, from 0 to 1

    @property
    def steps(self) -> np.ndarray:
        return self.column("step")

    def column(self, name: str) -> np.ndarray:
        """Return a metric at every step, NaN where there is none."""
        values = [record.get(name) for record in self.records]
        return np.array([value if isinstance(value, float) and math.isfinite(value) else math.nan for value in values])


def read(paths: Sequence[Path]) -> dict[str, list[Run]]:
    """Return the runs by kind: pretrain, rloo or results. Raises `InputError` for what is none of them."""
    found: dict[str, list[Run]] = {}
    for path, name in zip(paths, short_names(paths)):
        kind, records, solved = read_folder(path) if path.is_dir() else read_results(path)
        runs = found.setdefault(kind, [])
        if len(runs) == MOST:
            raise InputError(f"more than {MOST} runs of a kind cannot be told apart in a figure; give fewer")
        look = {"color": COLORS[len(runs) % len(COLORS)], "linestyle": DASHES[len(runs) // len(COLORS)]}
        runs.append(Run(name, look, records, solved))
    return found


def short_names(paths: Sequence[Path]) -> list[str]:
    """Return as many last parts of each path as tell all of them apart."""
    parts = [Path(os.path.abspath(path)).parts for path in paths]
    if len(set(parts)) < len(parts):
        raise InputError(f"{next(path for path, one in zip(paths, parts) if parts.count(one) > 1)} is given twice")
    for n in range(1, max(map(len, parts)) + 1):
        names = [Path(*one[-n:]).as_posix() for one in parts]
        if len(set(names)) == len(names) and not any(name.startswith("_") for name in names):    # such ones no legend shows
            break
    return ["".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in name) for name in names]


def read_folder(folder: Path) -> tuple[str, list[dict[str, Any]], dict[Any, dict[str, np.ndarray]]]:
    """Return the kind of a run of training, its records and its dev results. Lines that a kill cut short are left out."""
    path, by_step = folder / "metrics.jsonl", {}
    if not path.is_file():
        raise InputError(f"{folder} is no run: it has no metrics.jsonl, which minimoe.pretrain and minimoe.rloo write")
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError, TypeError, KeyError, RecursionError):
            record = json.loads(line, parse_int=float)
            if math.isfinite(record["step"]):
                by_step[record["step"]] = record
    records = [by_step[step] for step in sorted(by_step)]
    if not records:
        raise InputError(f"{path} has no whole line of a step yet; there is nothing to draw")
    kind = next((kind for kind, name in KINDS.items() if name in records[-1]), None)
    if kind is None:
        raise InputError(f"{path} is of no kind of run known here: its lines have neither {' nor '.join(KINDS.values())}")
    dev = load_run(folder / "last").get("dev")                            # of minimoe.rloo: it looks before its first step too
    looks = [{"step": 0, "dev": dev.get("0") if isinstance(dev, dict) else None}, *records]
    return kind, records, {
        int(look["step"]): {family: np.arange(DEV_TASKS) < look["dev"][family] for family in FAMILIES}
        for look in looks if is_dev(look.get("dev"))
    }


def is_dev(value: Any) -> bool:
    """Say whether a value of a record is how many dev tasks of each family were solved."""
    numbers = value.values() if isinstance(value, dict) and value.keys() == FAMILIES.keys() else [None]
    return all(isinstance(number, int | float) and 0 <= number <= DEV_TASKS for number in numbers)


def read_results(path: Path) -> tuple[str, list[dict[str, Any]], dict[Any, dict[str, np.ndarray]]]:
    """Return what each task of each family came to, a mean over the models, of a file of minimoe.evaluate --json."""
    results, solved = read_json(path), {}
    try:
        for name in [name for name in ("before", "after") if name in results]:
            models = [model["tasks"] for model in results[name]["models"]]
            families = np.array([[task["name"].rsplit("_", 1)[0] for task in tasks] for tasks in models])
            greedy = np.array([[task["greedy"]["status"] == "passed" for task in tasks] for tasks in models])
            solved[name] = {family: greedy.mean(axis=0)[families[0] == family] for family in FAMILIES}
            if (families != families[0]).any() or not all(map(len, solved[name].values())):
                raise ValueError
        solved["after"]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        raise InputError(f"{path} is no file that minimoe.evaluate --json wrote") from None
    return "results", [], solved


def smooth(values: np.ndarray) -> np.ndarray:
    """Return the mean of the WINDOW values around each, of those that there are."""
    window, known = np.ones(min(WINDOW, len(values) - 1 | 1)), np.isfinite(values)
    return np.convolve(np.where(known, values, 0), window, "same") / np.convolve(known, window, "same")


def line(ax: Any, run: Run, metric: str, chosen: Any = slice(None)) -> None:
    """Draw a metric of a run: the numbers as they are, and their moving mean."""
    steps, values = run.steps[chosen], run.column(metric)[chosen]
    alone = "o" if np.isfinite(values).sum() == 1 else ""
    ax.plot(steps, values, color=run.look["color"], linewidth=0.7, alpha=0.45)
    ax.plot(steps, smooth(values), **run.look, marker=alone, label=run.name)


def legend(fig: Any, handles: Sequence[Any] | None = None) -> None:
    """Put the legend below everything, each label once."""
    handles = handles or fig.axes[0].get_legend_handles_labels()[0]
    columns = max(1, 80 // (8 + max(len(handle.get_label()) for handle in handles)))
    fig.set_figheight(fig.get_figheight() + 0.25 * -(-len(handles) // columns))
    fig.legend(handles=handles, loc="outside lower center", ncols=columns)


def curves(fig: Any, runs: list[Run], kind: str, metric: str, ylabel: str, log: bool = False, clip: float | None = None) -> None:
    runs = [run for run in runs if np.isfinite(run.column(metric)).any()]
    if not runs:
        return
    ax = fig.subplots()
    for run in runs:
        line(ax, run, metric)
    if log:
        ax.set_yscale("log")
        ax.yaxis.get_major_locator().set_params(subs=(1, 2, 5))
        ax.yaxis.set_major_formatter("{x:g}")
        ax.minorticks_off()
    if clip:
        ax.axhline(clip, color="0.4", linestyle=(0, (2, 2)), linewidth=1.2, label=f"longer ones are shortened to {clip:g}")
    ax.set(xlabel=f"{UNITS[kind]} (thick: mean of {WINDOW} around it)", ylabel=ylabel)
    legend(fig)


def experts(fig: Any, runs: list[Run], kind: str) -> None:
    """Draw what the experts get, as a multiple of an even share: all steps' largest, and the last step's all."""
    from matplotlib.colors import TwoSlopeNorm

    drawn = {run.name: (run, *loads) for run in runs if (loads := expert_loads(run))}
    if not drawn:
        return
    most = max(loads.shape[2] for _, _, loads in drawn.values()) / 2      # a row goes to two experts
    norm = TwoSlopeNorm(1, 0, max(most, 1.5))
    fig.set_figheight(0.8 + 2.4 * len(drawn))
    axes = fig.subplots(len(drawn), 2, squeeze=False, width_ratios=(3, 2))
    for (left, right), (run, steps, loads) in zip(axes, drawn.values()):
        blocks, E = loads.shape[1:]
        middles = (steps[1:] + steps[:-1]) / 2
        edges = np.concatenate([[steps[0] - 0.5], middles, [steps[-1] + 0.5]])
        options = dict(cmap="PuOr_r", norm=norm, rasterized=True)
        left.pcolormesh(edges, np.arange(blocks + 1) + 0.5, E * np.fmax.reduce(loads, axis=2).T, **options)
        mesh = right.pcolormesh(np.arange(E + 1) + 0.5, np.arange(blocks + 1) + 0.5, E * loads[-1], **options)
        left.set(ylabel="block", title=f"{run.name}: the fullest expert", xlabel="step")
        right.set(title=f"every expert at step {steps[-1]:.0f}", xlabel="expert")
        for ax in left, right:
            ax.set(ylim=(blocks + 0.5, 0.5), facecolor="0.6")
            ax.grid(False)
            ax.yaxis.get_major_locator().set_params(integer=True)
            ax.xaxis.get_major_locator().set_params(integer=True)
    fig.colorbar(mesh, ax=axes, label="tokens, of an even share", ticks=[0, 1, *range(2, int(most) + 1)])


def expert_loads(run: Run) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the steps that have expert loads, and those (steps, blocks, experts); None if there are none."""
    found = {}
    for record in run.records:
        with suppress(KeyError, TypeError, ValueError):
            load = np.array(record["expert_load"], float)
            if load.ndim == 2 and load.size:
                found[record["step"]] = load
    alike = {step: load for step, load in found.items() if load.shape == load.shape}
    return (np.array(list(alike)), np.array(list(alike.values()))) if alike else None
