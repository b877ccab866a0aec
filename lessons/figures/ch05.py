"""The figure of chapter 5: python -m lessons.figures.ch05"""

import numpy as np

from lessons.figures.style import COLORS, figure, save
from minimoe.gradcheck import randomize
from minimoe.layers.sparse_attention import SparseAttention

STEPS = 10.0 ** -np.arange(1, 8)
INPUTS = 200


def probes() -> tuple[np.ndarray, np.ndarray]:
    """Return |numeric - analytic| of 200 random inputs, each along a random direction, at every h, and whether a choice changed.

    Both are (len(STEPS), INPUTS).
    """
    rng = np.random.default_rng(0)
    layer = randomize(SparseAttention(10, 3, 4, 5, rng, np.float64), rng)
    error, changed = np.empty((2, len(STEPS), INPUTS))
    for n, (x, direction, r) in enumerate(rng.standard_normal((INPUTS, 3, 1, 16, 10))):
        _, saved = layer.forward(x)
        analytic = np.sum(direction * layer.backward(r, saved, {}))
        for i, h in enumerate(STEPS):
            (up, saved_up), (down, saved_down) = layer.forward(x + h * direction), layer.forward(x - h * direction)
            error[i, n] = abs(np.sum(r * (up - down)) / (2 * h) - analytic)
            changed[i, n] = any(not np.array_equal(s[5], saved[5]) for s in (saved_up, saved_down))
    return error, changed.astype(bool)


def main() -> None:
    error, changed = probes()
    fig, ax = figure(height=3.8)
    spread = 10 ** np.random.default_rng(1).uniform(-0.2, 0.2, error.shape)
    h = STEPS[:, None] * spread                                           # drawn beside each other; computed at h itself
    ax.loglog(h[changed], error[changed], ".", color=COLORS[1], markersize=4, label="a query kept other keys at x + h or x - h")
    ax.loglog(h[~changed], error[~changed], ".", color=COLORS[0], markersize=4, label="all kept the same keys")
    for i, count in enumerate(changed.sum(axis=1)):
        ax.annotate(f"{count}", (STEPS[i], 3e4), ha="center", color=COLORS[1], fontsize=10)
    ax.annotate("of 200:", (1.2e-8, 3e4), ha="left", color=COLORS[1], fontsize=10)
    ax.set(xlabel="h", ylabel="|finite difference - backward|", xlim=(1e-8, 0.5), ylim=(1e-14, 2e5))
    ax.legend(loc="lower right", fontsize=10, markerscale=2)
    save(fig, "05-error-against-h")


if __name__ == "__main__":
    main()
