"""The figure of chapter 9: python -m lessons.figures.ch09"""

import json
from pathlib import Path

import numpy as np

from lessons.figures.style import COLORS, figure, save
from minimoe.layers.softmax import softmax

RECEIPT = Path(__file__).parents[1] / "receipts" / "ch09.json"


def main() -> None:
    """Training widens what it was given: the stream that is read most is written least. Two tensors stay where they were."""
    share = json.loads(RECEIPT.read_text())["share"]
    blocks = len(share) // 2
    fig, both = figure(2, sharey=True, height=3.3)
    for axes, kind, still in zip(both, ("read", "write"), (0, blocks - 1)):
        rows = np.array([share[f"blocks.{i}.{kind}"] for i in range(blocks)])     # (blocks, S)
        S = rows.shape[1]
        start = softmax(np.linspace(0.1, -0.1, S) * (1 if kind == "read" else -1))
        for s in range(S):
            axes.axhline(start[s], color=COLORS[s], lw=0.9, ls=":")
            axes.plot(rows[:, s], "o-", markersize=4, color=COLORS[s], label=f"stream {s}")
            axes.plot(still, rows[still, s], "o", markersize=7, markerfacecolor="white", color=COLORS[s])
        axes.set(xlabel="block", title=f"share of each stream in {kind}", xticks=range(blocks))
        axes.title.set_fontsize(11)
    both[0].set_ylabel("share, of 1")
    both[0].annotate("no gradient", (0, 0.279), (0.1, 0.335), fontsize=9, arrowprops={"arrowstyle": "-", "color": COLORS[6], "lw": 0.8})
    both[1].annotate("no gradient", (blocks - 1, 0.279), (blocks - 2.6, 0.335), fontsize=9, arrowprops={"arrowstyle": "-", "color": COLORS[6], "lw": 0.8})
    handles, labels = both[0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=9)
    both[0].set_ylim(0.17, 0.35)
    save(fig, "09-shares")


if __name__ == "__main__":
    main()
