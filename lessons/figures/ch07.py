"""The figures of chapter 7: which tensors each fault of routing makes fail, and what a router learns from the experts it chose.

    python -m lessons.figures.ch07
"""

import numpy as np

from lessons.figures.style import COLORS, figure, save
from lessons.mutants import MUTANTS, planted
from minimoe import gradcheck
from minimoe.layers.moe import MoE

E, D, F = 8, 16, 8


def pair(k: int, seed: int) -> tuple[MoE, MoE]:
    """Return a teacher, and a student with the same experts and a router of its own."""
    rng = np.random.default_rng(seed)
    teacher, student = (gradcheck.randomize(MoE(D, E, F, k, rng, np.float64), rng) for _ in range(2))
    student.experts, student.shared = teacher.experts, teacher.shared
    teacher.router.weight.data *= 2                                       # it is sure of its choices
    return teacher, student


def learned(k: int, seed: int, steps: int = 100) -> list[float]:
    """Train the student's router alone on the teacher's outputs; return how often their first choices agree, step by step."""
    teacher, student = pair(k, seed)
    rng = np.random.default_rng([seed, k])
    test, W = rng.standard_normal((500, D)), student.router.weight
    right, agreement = teacher.forward(test)[1].chosen[:, 0], []
    for _ in range(steps + 1):
        agreement.append(float(np.mean(student.forward(test)[1].chosen[:, 0] == right)))
        x = rng.standard_normal((64, D))
        y, saved = student.forward(x)
        dy = 2 * (y - teacher.forward(x)[0]) / len(x)                     # squared error, mean over rows
        grads = {W: np.zeros_like(W.data)}                                # the experts are frozen
        student.backward(dy, saved, grads)
        W.data -= 0.3 * grads[W]
    return agreement


def signatures() -> None:
    faults = [mutant for mutant in MUTANTS if mutant.layer in ("moe", "experts")]
    errors = []
    for mutant in faults:
        with planted(mutant):
            report = gradcheck.cases()["moe"]()
        errors.append([row.error if row.verdict == "FAILED" else np.nan for row in report.rows])
    tensors = [row.tensor for row in report.rows]
    order = sorted(range(len(faults)), key=lambda i: ([np.isnan(error) for error in errors[i]], faults[i].name))
    fig, axes = figure(height=6.0)
    shown = axes.imshow(np.log10([errors[i] for i in order]), cmap="viridis_r", vmin=-3, vmax=0, aspect="auto")
    axes.set_xticks(range(len(tensors)), [tensor.replace(".weight", "").replace(".", "\n") for tensor in tensors], fontsize=9)
    axes.set_yticks(range(len(faults)), [faults[i].name for i in order], fontsize=9)
    axes.set_xticks(np.arange(len(tensors)) - 0.5, minor=True)
    axes.set_yticks(np.arange(len(faults)) - 0.5, minor=True)
    axes.grid(False)
    axes.grid(True, which="minor", color="#bbbbbb", alpha=1, linewidth=0.6)
    axes.tick_params(which="both", length=0)
    axes.xaxis.tick_top()
    bar = fig.colorbar(shown, ax=axes, shrink=0.6, ticks=[-3, -2, -1, 0], label="relative error (white: passes)")
    bar.ax.set_yticklabels(["0.001", "0.01", "0.1", "1"])
    save(fig, "07-signatures")


def learning() -> None:
    fig, axes = figure(height=3.4)
    for k, color in zip((8, 2, 1), COLORS):
        runs = np.array([learned(k, seed) for seed in range(3)])
        axes.plot(runs.T, color=color, linewidth=0.8, alpha=0.5)
        axes.plot(runs.mean(axis=0), color=color, label=f"k = {k}")
    axes.axhline(1 / E, color=COLORS[6], linewidth=1, linestyle=":", label="chance")
    axes.set(xlabel="step", ylabel="rows whose first choice\nis the teacher's", ylim=(0, 1.02), xlim=(0, 100))
    axes.legend(loc="center right")
    save(fig, "07-router-learns")


if __name__ == "__main__":
    signatures()
    learning()
