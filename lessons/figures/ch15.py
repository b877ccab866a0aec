"""The figures of chapter 15: python -m lessons.figures.ch15"""

import numpy as np

from checkpoints.table import RECIPES, solved
from lessons.figures.style import COLORS, figure, save
from lessons.solutions.ch15 import silent
from minimoe.coding.tasks import FAMILIES


def without_signal() -> None:
    """Groups teach nothing where nearly all samples pass, or nearly none; the larger the group, the less."""
    fig, axes = figure(height=3.0)
    p = np.linspace(0, 1, 401)
    for G, color in zip((4, 8, 16, 64), COLORS):
        axes.plot(p, [100 * silent({1.0: x, 0.0: 1 - x}, G) for x in p], color=color, label=f"groups of {G}")
    axes.set(xlabel="p, the probability that a completion passes", ylabel="groups without a signal, %", ylim=(0, 100), xlim=(0, 1))
    axes.legend(loc="upper center", ncols=2)
    save(fig, "15-silent")


def results() -> None:
    """The reward moves the families that it is about, replay the others."""
    fig, panels = figure(columns=3, width=9.0, height=3.6, sharey=True)
    for p, axes in enumerate(panels):
        for i, (name, label) in enumerate(RECIPES.items()):
            family = solved(f"{name}-{p}").sum(axis=2).mean(axis=0)       # (8,) of 8 tasks
            places = np.arange(len(FAMILIES)) + 0.18 * (i - 1.5)
            axes.plot(places, family, "o", color=["#999999", *COLORS][i], label=label, markersize=5)
        axes.axvspan(-0.5, 2.5, color="#0072b2", alpha=0.08, lw=0)
        axes.set(title=f"pretraining seed {p}", xlim=(-0.5, 7.5), ylim=(-0.4, 8.4))
        axes.set_xticks(range(len(FAMILIES)), list(FAMILIES), rotation=60, ha="right", fontsize=9)
    panels[0].set_ylabel("tasks solved, of 8")
    fig.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    save(fig, "15-results")


def main() -> None:
    without_signal()
    results()


if __name__ == "__main__":
    main()
