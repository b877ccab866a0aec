"""The figures of chapter 6: python -m lessons.figures.ch06"""

import json
from pathlib import Path

import numpy as np

from lessons.figures.style import COLORS, figure, save
from lessons.mutants import MUTANTS, planted
from minimoe.layers.linear_attention import LinearAttention

RECEIPT = Path(__file__).parents[1] / "receipts" / "ch06.json"
K, T, CHUNK = 8, 24, 8
SHOWN = {
    "no-reverse-sum": "no reverse sum",
    "sum-runs-forward": "sum runs forward",
    "future-z-forgotten": "z of later chunks lost",
    "future-kv-overwritten": "kv of later chunks overwritten",
    "query-misses-past": "query misses earlier chunks",
    "scores-transposed": "scores transposed",
}


def chunk_size() -> None:
    """One position at a time is slow, all at once too; memory is least where the chunk is as long as a head is wide."""
    receipt = json.loads(RECEIPT.read_text())
    fig, (left, right) = figure(2, height=3.2)
    for (positions, times), marker in zip(receipt["time"].items(), "os"):
        left.plot([int(C) for C in times], list(times.values()), marker + "-", markersize=4, label=f"T = {positions}")
    left.set(xlabel="chunk size C", ylabel="forward and backward,\nmicroseconds a position", xscale="log", ylim=(0, None))
    C, width = np.geomspace(1, 512, 50), 32
    right.plot(C, C, "--", color=COLORS[6], lw=1.2, label="scores: C")
    right.plot(C, width**2 / C, ":", color=COLORS[6], lw=1.6, label="kv: K²/C, K = 32")
    right.plot(C, C + width**2 / C, color=COLORS[2], label="both")
    right.set(xlabel="chunk size C", ylabel="numbers saved for backward,\na position and head", xscale="log", yscale="log", ylim=(1, 4000))
    for axes in left, right:
        axes.set_xticks([1, 4, 32, 192, 768] if axes is left else [1, 4, 32, 192], ["1", "4", "32", "192", "768"][: 5 if axes is left else 4])
        axes.minorticks_off()
        axes.legend(fontsize=9)
    save(fig, "06-chunk-size")


def where_it_fails() -> None:
    """Each fault has its own stretch of positions, in the gradient of query, key or value."""
    layer = LinearAttention(3 * K, 1, K, CHUNK, None, np.float64)         # its input is query, key and value side by side
    layer.qkv.weight.data, layer.out.weight.data = np.eye(3 * K), np.eye(3 * K, K)
    rng = np.random.default_rng(0)
    x, r = rng.standard_normal((2, 16, T, 3 * K))
    y, saved = layer.forward(x)
    right = layer.backward(r, saved, {})
    scale = np.sqrt((right**2).reshape(-1, T, 3, K).mean(axis=(0, 1, 3)))     # (3,) of query, key, value

    fig, grid = figure(2, 3, height=4.6, sharex=True, sharey=True)
    for axes, (name, title) in zip(grid.flat, SHOWN.items()):
        with planted(next(mutant for mutant in MUTANTS if mutant.name == f"linear-attention-{name}")):
            off = layer.backward(r, saved, {}) - right
        error = np.sqrt((off**2).reshape(-1, T, 3, K).mean(axis=(0, 3))) / scale      # (T,3)
        for edge in range(CHUNK, T, CHUNK):
            axes.axvline(edge - 0.5, color=COLORS[6], lw=0.8, ls=":")
        for i in range(3):
            drawn = np.where(error[:, i] > 1e-9, error[:, i], np.nan)
            axes.plot(drawn, "o-", markersize=3, color=COLORS[i])
        axes.set_title(title, fontsize=10)
        axes.set(xlim=(-1, T), yscale="log", ylim=(0.005, 20), xticks=range(0, T + 1, CHUNK))
    for axes in grid[-1]:
        axes.set_xlabel("position")
    fig.supylabel("error of the gradient / its size", fontsize=11)
    handles = [axes.plot([], [], "o-", markersize=3, color=COLORS[i], label=t)[0] for i, t in enumerate(("of the query", "of the key", "of the value"))]
    fig.legend(handles=handles, loc="outside upper right", ncols=3, fontsize=10)
    save(fig, "06-where-it-fails")


def main() -> None:
    chunk_size()
    where_it_fails()


if __name__ == "__main__":
    main()
