"""Draw what runs wrote down: a figure for each thing to see, of one run or of several over each other.

    python -m minimoe.plot checkpoints/pretrain
    python -m minimoe.plot checkpoints/rloo checkpoints/rl-alone --out figures --format svg
    python -m minimoe.plot before.json after.json

A RUN is a folder of minimoe.pretrain or minimoe.rloo, finished or not, or a file of minimoe.evaluate --json. Dots are
the numbers as they are, lines their moving mean. Intervals are those of minimoe.evaluate: 95%, by a bootstrap over
tasks; where all tasks were solved, or none, they have no width.

Needs matplotlib: pip install matplotlib
"""

import argparse
import json
import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from minimoe.cli import LARGEST_INT, Parser, run, settle

if __name__ == "__main__":
    settle()    # before NumPy is imported

import numpy as np

from minimoe.coding.scoring import DEV_TASKS, bootstrap
from minimoe.coding.tasks import FAMILIES
from minimoe.errors import InputError
from minimoe.files import read_json
from minimoe.training.checkpoint import load_run
from minimoe.training.optim import CLIP

FORMATS = "png", "svg"
KINDS = {"loss": ("pretrain", "step"), "reward": ("rloo", "group")}    # what each step writes down -> kind, unit
DIMENSIONS = {"expert_load": 2}    # of a metric at a step; the others are numbers
LARGEST = 1e100                    # number that axes have room for
WINDOW = 9                         # steps of the moving mean
COLORS = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#333333"    # safe for the colour-blind
MARKS = {"-": "o", "--": "s", ":": "^", "-.": "D"}    # in place of dashes, where there is no line
LOOKS = [{"color": color, "linestyle": dashes} for dashes in MARKS for color in COLORS]
VERDICTS = {"passed": "#009e73", "failed": "#e69f00", "invalid": "#d55e00", "did not end": "#333333"}
STYLE = {
    "font.size": 11, "text.parse_math": False, "lines.linewidth": 1.8, "axes.titlesize": 11, "axes.axisbelow": True,
    "axes.titlelocation": "left", "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "grid.alpha": 0.25, "figure.constrained_layout.w_pad": 0.08, "figure.constrained_layout.h_pad": 0.08,
    "legend.frameon": False, "svg.hashsalt": "minimoe", "savefig.dpi": 200,
}
Solved = dict[Any, dict[str, np.ndarray]]    # step, "before" or "after" -> family -> each task, from 0 to 1


class Run(NamedTuple):
    """What there is to draw of a RUN."""

    name: str
    unit: str                        # what a step is called
    look: dict[str, str]             # colour and dashes
    records: list[dict[str, Any]]    # the lines of metrics.jsonl, by step
    solved: Solved

    def column(self, metric: str) -> np.ndarray:
        """Return a metric at every step, (steps,) or (steps, ...); NaN where there is none."""
        values = [floats(record.get(metric)) for record in self.records]
        shape = next((value.shape for value in values if value.ndim == DIMENSIONS.get(metric, 0)), None)
        column = np.array([value if value.shape == shape else np.full(shape or (), np.nan) for value in values])
        return np.where(np.abs(column) < LARGEST, column, np.nan)

    def has(self, metric: str) -> bool:
        if metric == "dev":
            return bool(self.solved)
        if metric == "family":
            return any(record.get("family") in list(FAMILIES) for record in self.records)
        return bool(np.isfinite(self.column(metric)).any())


def floats(value: Any) -> np.ndarray:
    """Return a number, or lists of them, as an array; NaN for null, and for what is neither."""
    try:
        return np.array(value, float)
    except (TypeError, ValueError):
        return np.array(np.nan)


# reading


def read(paths: Sequence[Path]) -> dict[str, list[Run]]:
    """Return the runs by kind: pretrain, rloo, results. Raises `InputError` for what is none of them."""
    kinds: dict[str, list[Run]] = {}
    for path, name in zip(paths, short_names(paths)):
        kind, unit, records, solved = read_folder(path) if path.is_dir() else read_results(path)
        runs = kinds.setdefault(kind, [])
        if len(runs) == len(LOOKS):
            raise InputError(f"more than {len(LOOKS)} runs of a kind cannot be told apart in a figure; give fewer")
        runs.append(Run(name if unit else name.removesuffix(".json"), unit, LOOKS[len(runs)], records, solved))
    return kinds


def short_names(paths: Sequence[Path]) -> list[str]:
    """Return as many last parts of the paths as tell them apart. Raises `InputError` for a path given twice."""
    parts = [Path(os.path.abspath(path)).parts for path in paths]
    for i, path in enumerate(paths):
        if parts[i] in parts[:i]:
            raise InputError(f"{path} is given twice")
    names: list[str] = []
    for n in range(1, max(map(len, parts)) + 1):
        names = [Path(*one[-n:]).as_posix() for one in parts]
        if len(set(names)) == len(names) and not any(name.startswith("_") for name in names):    # legends skip those
            break
    return [shown(name) for name in names]


def shown(name: str) -> str:
    """Return a name that a figure has room for and a font has letters for."""
    name = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in name)
    return name if len(name) <= 40 else f"{name[:20]}…{name[-19:]}"


def read_folder(folder: Path) -> tuple[str, str, list[dict[str, Any]], Solved]:
    """Return the kind of a run, its unit, its records and its dev results. A line that a kill cut short is left out."""
    path, found = folder / "metrics.jsonl", {}
    if not path.is_file():
        raise InputError(f"{folder} is no run: it has no metrics.jsonl, which minimoe.pretrain and minimoe.rloo write")
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError, TypeError, KeyError, RecursionError):
            record = json.loads(line, parse_int=float)                    # of thousands of digits, infinity
            if 0 < (step := float(record["step"])) <= LARGEST_INT:
                found[step] = record | {"step": step}
    records = [found[step] for step in sorted(found)]
    if not records:
        raise InputError(f"{path} has no whole line of a step yet; there is nothing to draw")
    kind, unit = next((KINDS[metric] for metric in KINDS if metric in records[-1]), ("", ""))
    if not kind:
        raise InputError(f"{path} is of no known kind of run: its steps have neither {' nor '.join(KINDS)}")
    dev = load_run(folder / "last").get("dev")                            # minimoe.rloo looks before its first step too
    looks = [{"step": 0, "dev": dev.get("0") if isinstance(dev, dict) else None}, *records]
    return kind, unit, records, {
        int(look["step"]): {family: np.arange(DEV_TASKS) < look["dev"][family] for family in FAMILIES}
        for look in looks if is_dev(look.get("dev"))
    }


def is_dev(value: Any) -> bool:
    """Say whether it is how many of each family's dev tasks were solved."""
    counts = value.values() if isinstance(value, dict) and value.keys() == FAMILIES.keys() else [None]
    return all(isinstance(count, (int, float)) and 0 <= count <= DEV_TASKS for count in counts)


def read_results(path: Path) -> tuple[str, str, list[dict[str, Any]], Solved]:
    """Return of a file of minimoe.evaluate what became of each task, greedy: the mean over the models."""
    results, solved = read_json(path), {}
    try:
        for look in ["before", "after"] if "before" in results else ["after"]:
            models = [model["tasks"] for model in results[look]["models"]]
            family = np.array([[task["name"].rsplit("_", 1)[0] for task in tasks] for tasks in models])
            passed = np.array([[task["greedy"]["status"] == "passed" for task in tasks] for tasks in models])
            solved[look] = {name: passed.mean(axis=0)[family[0] == name] for name in FAMILIES}
            if (family != family[0]).any() or not all(map(len, solved[look].values())):
                raise ValueError("not the same tasks, or none of a family")
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        raise InputError(f"{path} is neither a run's folder nor a file of minimoe.evaluate --json") from None
    return "results", "", [], solved


# drawing


def panels(fig: Any, rows: int, height: float, **options: Any) -> list[Any]:
    """Return axes below each other, each `height` inches high."""
    fig.set_figheight(0.7 + height * rows)
    axes = list(fig.subplots(rows, 1, sharex=True, squeeze=False, **options)[:, 0])
    axes[0].xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    return axes


def legend(fig: Any) -> None:
    """Tell below the figure, which grows by it, what is what."""
    found: dict[str, Any] = {}
    for ax in fig.axes:
        handles, labels = ax.get_legend_handles_labels()
        found |= dict(zip(labels, handles))
    columns = max(1, 84 // (8 + max(map(len, found))))
    fig.set_figheight(fig.get_figheight() + 0.25 * -(-len(found) // columns))
    fig.legend(found.values(), found.keys(), loc="outside lower center", ncols=columns)


def curve(ax: Any, run: Run, metric: str) -> None:
    """Draw a metric as it is, and its moving mean."""
    steps, values = run.column("step"), run.column(metric)
    known, window = np.isfinite(values), np.ones(min(WINDOW, (len(values) - 1) | 1))    # odd, no longer than `values`
    mean = np.convolve(np.where(known, values, 0), window, "same") / np.convolve(known, window, "same")
    ax.plot(steps, values, "o", color=run.look["color"], markersize=3, markeredgewidth=0, alpha=0.4)
    ax.plot(steps, mean, label=run.name, marker="o" if known.sum() == 1 else "", **run.look)


def curves(fig: Any, runs: list[Run], metric: str, ylabel: str, log: bool = False, clip: float | None = None) -> None:
    (ax,) = panels(fig, 1, 2.5)
    for one in runs:
        curve(ax, one, metric)
    if log:
        ax.set_yscale("log")
        ax.yaxis.get_major_locator().set_params(subs=(1, 2, 5))
        ax.yaxis.set_major_formatter("{x:g}")
        ax.minorticks_off()
    if clip:
        ax.axhline(clip, color="0.3", linestyle="--", linewidth=1.2, label=f"longer ones are clipped to {clip:g}")
    ax.set(xlabel=f"{runs[0].unit} (dots: each; lines: mean of {WINDOW})", ylabel=ylabel)
    legend(fig)


def reward_by_family(fig: Any, runs: list[Run]) -> None:
    there = [name for name in FAMILIES if any(record.get("family") == name for one in runs for record in one.records)]
    for ax, name in zip(panels(fig, len(there), 1.6, sharey=True), there):
        for one in runs:
            part = one._replace(records=[record for record in one.records if record.get("family") == name])
            if part.records:
                curve(ax, part, "reward")
        ax.set(title=name, ylabel="mean reward")
    fig.axes[-1].set(xlabel=f"group (dots: each; lines: mean of {WINDOW} of the family)")
    legend(fig)


def verdicts(fig: Any, runs: list[Run]) -> None:
    for ax, one in zip(panels(fig, len(runs), 1.7), runs):
        names = "passed", "failed", "invalid", "truncated"
        passed, failed, invalid, cut = (np.nan_to_num(one.column(name)) for name in names)
        top = np.zeros(len(passed))
        for verdict, part in zip(VERDICTS, (passed, failed, invalid - cut, cut)):    # what was cut short is invalid
            ax.stairs(top + part, borders(one), baseline=top, fill=True, color=VERDICTS[verdict], label=verdict)
            top = top + part
        ax.set(ylim=(0, 1), ylabel="share of samples", title=one.name)
        ax.grid(False)
    fig.axes[-1].set(xlabel="group")
    legend(fig)


def borders(run: Run) -> np.ndarray:
    """Return where the cell of each step begins, and where the last one ends."""
    steps = run.column("step")
    return np.concatenate([[steps[0] - 0.5], (steps[1:] + steps[:-1]) / 2, [steps[-1] + 0.5]])


def experts(fig: Any, runs: list[Run]) -> None:
    """Draw what experts get, as a multiple of an even share: the fullest at every step, and each at the last step."""
    from matplotlib.colors import TwoSlopeNorm

    loads = [one.column("expert_load") for one in runs]                   # (steps, blocks, E) each
    most = max(load.shape[2] / 2 for load in loads)                       # two experts a row: none gets more than half
    options: dict[str, Any] = dict(cmap="PuOr_r", norm=TwoSlopeNorm(1, 0, max(2, most)), rasterized=True)
    fig.set_figheight(0.7 + 2.3 * len(runs))
    axes = fig.subplots(len(runs), 2, squeeze=False, width_ratios=(3, 2))
    for (left, right), one, load in zip(axes, runs, loads):
        _, blocks, E = load.shape
        rows, columns = np.arange(blocks + 1) - 0.5, np.arange(E + 1) - 0.5            # counted from 0
        left.pcolormesh(borders(one), rows, E * np.fmax.reduce(load, axis=2).T, **options)
        mesh = right.pcolormesh(columns, rows, E * load[-1], **options)
        left.set(title=one.name, xlabel="step (colour: the fullest expert)", ylabel="block")
        right.set_title(f"step {one.records[-1]['step']:.0f}", loc="right")
        right.set(xlabel="expert")
        for ax in left, right:
            ax.set(ylim=(blocks - 0.5, -0.5), facecolor="0.5")             # grey: no number
            ax.grid(False)
            for axis in ax.xaxis, ax.yaxis:
                axis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    fig.colorbar(mesh, ax=axes, label="rows (1: an even share)", ticks=range(int(max(2, most)) + 1))


def solved_by_step(fig: Any, runs: list[Run]) -> None:
    (ax,) = panels(fig, 1, 2.5)
    for one in runs:
        totals = [sum(map(sum, families.values())) for families in one.solved.values()]
        ax.plot(list(one.solved), totals, marker="o", markersize=4.5, label=one.name, **one.look)
    most = DEV_TASKS * len(FAMILIES)
    ax.set(xlabel=runs[0].unit, ylabel=f"tasks, of {most}", ylim=(-1, most + 2), yticks=range(0, most + 1, DEV_TASKS))
    legend(fig)


def solved_by_family(fig: Any, runs: list[Run]) -> None:
    """Draw the share of tasks solved at the first look (hollow) and at the last, with intervals."""
    looks = [(one, look) for one in runs for look in dict.fromkeys([*one.solved][:1] + [*one.solved][-1:])]
    rows = np.arange(len(FAMILIES) + 1)                                   # the last: all of them
    (ax,) = panels(fig, 1, len(rows) * max(0.3, 0.14 * len(looks)))
    for i, (one, look) in enumerate(looks):
        values = [*one.solved[look].values(), np.concatenate([*one.solved[look].values()])]
        low, high = np.transpose([bootstrap(value.tolist()) for value in values])
        when = f", {one.unit} {look}" if one.unit else f", {look}" if len(one.solved) > 1 else ""
        color, y = one.look["color"], rows + 0.8 * ((i + 0.5) / len(looks) - 0.5)
        ax.hlines(y, low, high, color=color, linewidth=1.4)
        ax.plot([value.mean() for value in values], y, MARKS[one.look["linestyle"]], color=color, markersize=5.5,
                label=one.name + when, markerfacecolor=color if look == [*one.solved][-1] else "white")
    for row in rows[:-1]:
        ax.axhline(row + 0.5, color="0.3" if row == rows[-2] else "0.85", linewidth=0.8)
    ax.set(yticks=rows, yticklabels=[*FAMILIES, "all"], ylim=(len(FAMILIES) + 0.5, -0.5),
           xticks=np.linspace(0, 1, 6), xlim=(-0.02, 1.02), xlabel="share of the tasks, with its 95% interval")
    ax.grid(False, axis="y")
    legend(fig)


class Drawing(NamedTuple):
    """A figure, for those runs that have the metric."""

    title: str
    metric: str
    onto: Callable[[Any, list[Run]], None]


def by_step(title: str, metric: str, ylabel: str, **options: Any) -> Drawing:
    return Drawing(title, metric, partial(curves, metric=metric, ylabel=ylabel, **options))


FIGURES = {    # by kind and name
    "pretrain-loss": by_step("Pretraining: loss", "loss", "cross entropy, nats a token", log=True),
    "pretrain-solved": Drawing("Pretraining: dev tasks solved, greedy", "dev", solved_by_step),
    "pretrain-solved-by-family": Drawing("Pretraining: tasks solved, first (hollow) and last", "dev", solved_by_family),
    "pretrain-experts": Drawing("Pretraining: how evenly rows are routed", "expert_load", experts),
    "pretrain-gradient": by_step("Pretraining: length of the gradient", "gradient_norm", "norm", log=True, clip=CLIP),
    "rloo-reward": by_step("RLOO: reward", "reward", "mean reward of the group"),
    "rloo-reward-by-family": Drawing("RLOO: reward, by the family of the group's task", "family", reward_by_family),
    "rloo-verdicts": Drawing("RLOO: what became of the samples", "passed", verdicts),
    "rloo-zero-spread": by_step("RLOO: groups of one reward, without advantage", "zero_spread", "share of groups"),
    "rloo-kl": by_step("RLOO: KL from the starting policy", "kl", "estimate, nats a sample"),
    "rloo-entropy": by_step("RLOO: entropy of the policy", "entropy", "nats a sampled token"),
    "rloo-replay-loss": by_step("RLOO: loss on replayed examples", "replay_loss", "cross entropy, nats a token"),
    "rloo-solved": Drawing("RLOO: dev tasks solved, greedy", "dev", solved_by_step),
    "rloo-solved-by-family": Drawing("RLOO: tasks solved, before (hollow) and after", "dev", solved_by_family),
    "results-solved-by-family": Drawing("Tasks solved, greedy", "dev", solved_by_family),
}


def draw(kinds: dict[str, list[Run]]) -> dict[str, Any]:
    """Return the figures that there is something for, by name."""
    from matplotlib.figure import Figure

    figures = {}
    for name, drawing in FIGURES.items():
        if runs := [one for one in kinds.get(name.split("-")[0], []) if one.has(drawing.metric)]:
            fig = figures[name] = Figure(figsize=(7, 3), layout="constrained")
            fig.suptitle(drawing.title, x=0.01, horizontalalignment="left", fontsize=13)
            drawing.onto(fig, runs)
    return figures


def write(figures: dict[str, Any], out: Path, formats: Sequence[str]) -> None:
    """Write each figure into `out` in each format, once all of them are drawn; the same picture is the same file."""
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".", dir=out) as scratch:
        for name, fig in figures.items():
            fig.draw_without_rendering()
            fig.set_layout_engine("none")                                 # laid out once, and so alike in every format
            for ending in formats:
                fig.savefig(Path(scratch, f"{name}.{ending}"), metadata={"Date": None} if ending == "svg" else None)
        for path in Path(scratch).iterdir():
            os.replace(path, out / path.name)


def formats_list(text: str) -> list[str]:
    """An argument type: "png,svg" as names of formats, each once."""
    formats = list(dict.fromkeys(text.split(",")))
    if not set(formats) <= set(FORMATS):
        raise argparse.ArgumentTypeError(f"expected some of {','.join(FORMATS)}, not {text!r}")
    return formats


def main() -> None:
    parser = Parser(description=__doc__)
    option = parser.add_argument
    option("runs", nargs="+", type=Path, metavar="RUN", help="a run's folder, or a file of minimoe.evaluate --json")
    option("--out", type=Path, default=Path("checkpoints/figures"), help="folder to write")
    option("--format", type=formats_list, metavar="FORMATS", default=",".join(FORMATS), help="of each figure")
    args = parser.parse_args()
    os.environ["MPLBACKEND"] = "agg"                                      # a notebook's may not be there
    try:
        import matplotlib
    except ImportError as error:
        raise InputError(f"figures need matplotlib: {error}; run: pip install matplotlib") from None
    if args.out.exists() and not args.out.is_dir():
        raise InputError(f"{args.out} is a file; choose another --out")
    warnings.simplefilter("ignore")                                       # of 0 / 0, and of letters that the font lacks
    kinds = read(args.runs)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()                                           # whatever the user's own style is
        matplotlib.rcParams.update(STYLE)
        figures = draw(kinds)
        if not figures:
            raise InputError("there is nothing to draw: the runs hold no numbers")
        write(figures, args.out, args.format)
    print(f"{args.out}:")
    for name in figures:
        print(f"  {name:26}{' '.join(args.format):9}{FIGURES[name].title}")


if __name__ == "__main__":
    run(main)
