"""The figure of chapter 2: the two gradients of the tied matrix, row by row, in the first batch of the nano model.

    python -m lessons.figures.ch02
"""

import numpy as np

from lessons.figures.style import COLORS, figure, save
from minimoe.coding.data import batch
from minimoe.config import PRESETS
from minimoe.model import MiniMoE
from minimoe.tokenizer import FIRST_BYTE
from minimoe.training.losses import cross_entropy


def two_gradients() -> tuple[np.ndarray, np.ndarray]:
    """Return the head's and the lookup's part of the embedding's gradient, (V,D) each."""
    model = MiniMoE(PRESETS["nano"], np.random.default_rng(0), np.float64)
    text, _ = batch(seed=0, step=0, rows=8, length=65)
    ids, targets = text[:, :-1], text[:, 1:]
    logits, saved = model.forward(ids)
    _, dlogits = cross_entropy(logits, targets, np.full(ids.shape, 1 / ids.size))
    grads = model.zero_grads()
    model.backward(dlogits, saved, grads)
    head = dlogits.reshape(-1, logits.shape[-1]).T @ saved.head
    return head, grads[model.embedding.weight] - head


def main() -> None:
    head, lookup = (np.linalg.norm(part, axis=1) for part in two_gradients())
    read = lookup > 1e-9
    ids = np.arange(len(head))
    fig, ax = figure()
    ax.semilogy(ids, head, "o", markersize=3.5, color=COLORS[0])
    ax.semilogy(ids[read], lookup[read], "D", markersize=4.5, markerfacecolor="none", markeredgewidth=1.3, color=COLORS[1])
    ax.text(0.99, 0.93, f"head: all {len(ids)} rows", color=COLORS[0], ha="right", transform=ax.transAxes)
    ax.text(0.99, 0.85, f"lookup: the {read.sum()} rows that were read; 0 elsewhere", color=COLORS[1], ha="right", transform=ax.transAxes)
    for character in " ex":
        row = FIRST_BYTE + ord(character)
        ax.annotate("space" if character == " " else character, (row, lookup[row]), (5, 4), textcoords="offset points", color="#333333")
    ax.annotate("ids that never occur: each pushed away\nfrom the mean of h, all alike", (200, head[200]), (200, 0.05), ha="center",
                color="#333333", arrowprops={"arrowstyle": "-", "color": "#999999"})
    ax.set(xlabel="id: row of the embedding", ylabel="length of the row's gradient", xlim=(-4, 264), ylim=(0.008, 2))
    save(fig, "02-two-gradients")


if __name__ == "__main__":
    main()
