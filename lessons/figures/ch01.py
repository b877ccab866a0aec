"""The figure of chapter 1: python -m lessons.figures.ch01"""

from typing import Any

import numpy as np

from lessons.figures.style import COLORS, figure, save
from minimoe.gradcheck import randomize
from minimoe.layers.rmsnorm import RMSNorm

DRAWN = np.random.default_rng(0).standard_normal((2, 8, 16))              # x and r


def error(dtype: Any, h: float) -> float:
    """Return the largest error of the difference quotient at any input of an RMSNorm, as a part of the largest gradient."""
    exact = randomize(RMSNorm(16, np.float64), np.random.default_rng(1))
    x, r = DRAWN
    _, saved = exact.forward(x)
    dx = exact.backward(r, saved, {})                                     # in float64, whatever the dtype

    norm = RMSNorm(16, dtype)
    norm.weight.data = exact.weight.data.astype(dtype)
    x, r, h = x.astype(dtype), r.astype(dtype), dtype(h)
    quotient = np.empty(x.shape)
    for place in np.ndindex(x.shape):
        ends = []
        for sign in (1, -1):
            nudged = x.copy()
            nudged[place] += sign * h
            ends.append(np.sum(r * norm.forward(nudged)[0]))
        quotient[place] = (ends[0] - ends[1]) / (2 * h)
    return float(np.abs(quotient - dx).max() / np.abs(dx).max())


def main() -> None:
    steps = 10 ** np.arange(-11, 0.26, 0.25)
    fig, ax = figure(height=4.0)
    for dtype, color, name, at in (np.float64, COLORS[0], "float64", (2e-7, 2e-10)), (np.float32, COLORS[1], "float32", (2e-3, 4e-3)):
        measured = [(h, error(dtype, h)) for h in steps if error(dtype, h) < 0.5]
        ax.loglog(*zip(*measured), "o-", color=color, markersize=3.5)
        ax.annotate(name, at, color=color, fontsize=12, ha="right")
        best = np.cbrt(3 * np.finfo(dtype).eps)
        ax.axvline(best, color=color, linestyle=":", linewidth=1.2)
        ax.annotate(f"(3ε)$^{{1/3}}$ = {best:.0e}".replace("e-0", "e-"), (best * 1.15, 3e-12), color=color, fontsize=9)
    ax.loglog(steps[-8:-1], 0.02 * steps[-8:-1] ** 2, "--", color=COLORS[6], linewidth=1)
    ax.annotate("grows like h²", (5e-2, 1e-5), color=COLORS[6], fontsize=10)
    ax.annotate("grows like ε/h", (1.5e-11, 4e-8), color=COLORS[6], fontsize=10)
    ax.axhline(0.03, color=COLORS[2], linestyle="--", linewidth=1.2)
    ax.annotate("a gradient 3% too large", (1e-11, 0.045), color=COLORS[2], fontsize=10)
    ax.set(xlabel="step h", ylabel="error of the difference quotient,\nas a part of the largest gradient", ylim=(1e-12, 3), xlim=(7e-12, 3))
    save(fig, "01-error-against-step")


if __name__ == "__main__":
    main()
