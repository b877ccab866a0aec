"""The figures of chapter 15: python -m lessons.figures.ch15"""

import numpy as np

from lessons.figures.style import COLORS, figure, save
from lessons.solutions.ch15 import silent


def without_signal() -> None:
    """Groups teach nothing where nearly all samples pass, or nearly none; the larger the group, the less."""
    fig, axes = figure(height=3.0)
    p = np.linspace(0, 1, 401)
    for G, color in zip((4, 8, 16, 64), COLORS):
        axes.plot(p, [100 * silent({1.0: x, 0.0: 1 - x}, G) for x in p], color=color, label=f"groups of {G}")
    axes.set(xlabel="p, the probability that a completion passes", ylabel="groups without a signal, %", ylim=(0, 100), xlim=(0, 1))
    axes.legend(loc="upper center", ncols=2)
    save(fig, "15-silent")


def main() -> None:
    without_signal()


if __name__ == "__main__":
    main()
