"""Figure of chapter 11: what one bad batch costs, with clipping and without.

    python -m lessons.figures.ch11
"""

import numpy as np

from minimoe.layers.layer import Parameter
from minimoe.training.optim import AdamW, clip

NUMBERS, STEPS, WHEN = 1000, 300, 100
AGREE = 0.3       # the mean of the gradients, in standard deviations


def progress(outlier: float, limit: float | None, rate: float = 1e-3) -> np.ndarray:
    """Return how far 1,000 numbers have moved, after 0 to 300 steps, where their gradients agree; in learning rates.

    Each gradient has a length near 0.9. That of step 100 has the length `outlier`, if it is not 0, and any direction.
    """
    rng = np.random.default_rng(0)
    weight = Parameter(np.zeros((1, NUMBERS)))
    optimizer = AdamW({"weight": weight}, rate, weight_decay=0.0)
    moved = [0.0]
    for t in range(1, STEPS + 1):
        g = (AGREE + rng.standard_normal((1, NUMBERS))) * 0.9 / np.sqrt(NUMBERS * (1 + AGREE**2))
        anywhere = rng.standard_normal((1, NUMBERS))
        if t == WHEN and outlier:
            g = anywhere * outlier / np.linalg.norm(anywhere)
        scale = clip(optimizer.parameters, {weight: g}, limit)[1] if limit else 1.0
        optimizer.step({weight: g}, scale)
        moved.append(float(-weight.data.mean() / rate))
    return np.array(moved)


def main() -> None:
    from lessons.figures.style import COLORS, figure, save

    fig, axes = figure(height=3.6)
    ways = [
        ("no outlier", dict(outlier=0, limit=None), COLORS[6], "-"),
        ("outlier, clipped to 1", dict(outlier=100, limit=1.0), COLORS[0], "--"),
        ("outlier, not clipped", dict(outlier=100, limit=None), COLORS[1], "-"),
    ]
    for name, options, color, dashes in ways:
        axes.plot(progress(**options), dashes, color=color, label=name)
    axes.axvline(WHEN, color="#888888", linewidth=1, linestyle=":")
    axes.annotate("one gradient of\nlength 100", (WHEN, 75), (WHEN - 6, 62), ha="right", color="#555555")
    axes.set_xlabel("step")
    axes.set_ylabel("progress (learning rates)")
    axes.set_xlim(0, STEPS)
    axes.set_ylim(0)
    axes.legend(loc="lower right")
    save(fig, "11-one-bad-batch")


if __name__ == "__main__":
    main()
