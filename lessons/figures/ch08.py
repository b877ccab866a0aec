"""The figure of chapter 8: how many experts are in use, with and without the load-balance loss.

    python -m lessons.figures.ch08
"""

import json
from pathlib import Path

import numpy as np

from lessons.figures.style import COLORS, figure, save

RECEIPT = Path(__file__).parents[1] / "receipts" / "ch08.json"


def main() -> None:
    receipt = json.loads(RECEIPT.read_text())
    fig, (left, right) = figure(columns=2, height=3.5, width_ratios=[3, 2])
    steps = np.arange(receipt["every"], receipt["steps"] + 1, receipt["every"])
    coefficients = sorted({run["coefficient"] for run in receipt["runs"]})
    for coefficient, color in zip(coefficients, (COLORS[1], COLORS[0], COLORS[2])):
        runs = [run for run in receipt["runs"] if run["coefficient"] == coefficient]
        used = np.array([np.mean(run["effective"], axis=1) for run in runs])        # (seeds,steps), the mean over blocks
        left.plot(steps, used.T, color=color, linewidth=0.8, alpha=0.5)
        left.plot(steps, used.mean(axis=0), color=color, label=f"coefficient {coefficient:g}")
        load = np.sort([run["load"] for run in runs], axis=-1).mean(axis=(0, 1))    # (E,), from the least used
        right.plot(np.arange(1, len(load) + 1), 100 * load, "o-", color=color, markersize=4)
    left.set(xlabel="step", ylabel="experts in use, of 8", ylim=(4, 8.15), xlim=(0, receipt["steps"]))
    left.legend(loc="lower right")
    right.axhline(12.5, color=COLORS[6], linewidth=1, linestyle=":")
    right.set(xlabel="expert, from the least used", ylabel="share of rows at the end, %", ylim=(0, None))
    save(fig, "08-experts-in-use")


if __name__ == "__main__":
    main()
