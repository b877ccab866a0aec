"""The figure of chapter 4: python -m lessons.figures.ch04"""

import numpy as np

from lessons.checks.ch04 import FAULTS
from lessons.mutants import planted
from lessons.figures.style import figure, save
from minimoe.config import PRESETS
from minimoe.layers.rope import Rope


def scores(K: int, context: int) -> np.ndarray:
    """Return the score of equal vectors at distances 0 to context-1, as the layer turns them, 1 at distance 0."""
    turned, _ = Rope(K).forward(np.ones((1, context, 1, K)))
    return turned[0, :, 0] @ turned[0, 0, 0] / K


def main() -> None:
    full = PRESETS["full"]
    fig, ax = figure()
    ax.plot(scores(full.head_width, full.context), label="exponent -2i/K, as it stands")
    with planted(FAULTS[0]):
        ax.plot(scores(full.head_width, full.context), linewidth=1, label="exponent 2i/K, the minus left out")
    ax.set(xlabel="distance between query and key (positions)", ylabel="score of equal vectors", xlim=(0, full.context))
    ax.set_ylim(-0.6, 1.05)
    ax.legend(loc="upper right")
    save(fig, "04-score-by-distance")


if __name__ == "__main__":
    main()
