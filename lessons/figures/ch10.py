"""Figure of chapter 10: a single wrong step in backward, and every tensor that it reaches.

    python -m lessons.figures.ch10
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from minimoe.config import PRESETS
from minimoe.gradcheck import randomize
from minimoe.layers.layer import Layer
from minimoe.model import MiniMoE

BLOCKS, SPOILED = 8, 4
ORDER = (    # of backward through a block
    "write", "moe.shared.down.weight", "moe.shared.up.weight", "moe.experts.down", "moe.experts.up", "moe.router.weight",
    "ffn_norm.weight", "attention.out.weight", "attention.qkv.weight", "attention_norm.weight", "read",
)


def spoil(layer: Layer, factor: float) -> Callable[[], Any]:
    """Return a context in which this one layer's backward returns its dx `factor` times too large, all else being right."""

    @contextmanager
    def spoiled() -> Iterator[None]:
        right = layer.backward
        layer.backward = lambda *args: factor * right(*args)
        try:
            yield
        finally:
            del layer.backward

    return spoiled


def gradients(model: MiniMoE, ids: np.ndarray, dlogits: np.ndarray) -> dict[str, np.ndarray]:
    """Return the gradient of every tensor, by name."""
    _, saved = model.forward(ids)
    grads = model.zero_grads()
    model.backward(dlogits, saved, grads)
    return {name: grads[p] for name, p in model.named_parameters()}


def relative_errors(model: MiniMoE, ids: np.ndarray, dlogits: np.ndarray, fault: Callable[[], Any]) -> dict[str, float]:
    """Return how wrong each tensor's gradient is under `fault`: largest difference over largest number; 0 where all is zero."""
    right = gradients(model, ids, dlogits)
    with fault():
        wrong = gradients(model, ids, dlogits)
    sizes = {name: np.abs(g).max() for name, g in right.items()}
    return {name: float(np.abs(wrong[name] - g).max() / sizes[name]) if sizes[name] > 1e-9 else 0.0 for name, g in right.items()}


def main() -> None:
    from matplotlib.patches import Rectangle

    from lessons.figures.style import figure, save

    rng = np.random.default_rng(1)
    model = randomize(MiniMoE(replace(PRESETS["micro"], blocks=BLOCKS), None, np.float64), np.random.default_rng(0))
    ids = rng.integers(0, PRESETS["micro"].vocabulary, (2, 11))
    r = rng.standard_normal((2, 11, PRESETS["micro"].vocabulary))
    errors = relative_errors(model, ids, r, spoil(model.blocks[SPOILED].attention, 1.03))

    table = np.array([[errors[f"blocks.{i}.{name}"] for i in range(BLOCKS)] for name in ORDER])
    whole = np.full((len(ORDER), BLOCKS + 2), np.nan)                     # a column for each end
    whole[:, 1:-1] = table
    whole[-1, 0], whole[0, -1] = errors["embedding.weight"], errors["final_norm.weight"]
    for name, column in ("read", 1), ("write", BLOCKS):
        whole[ORDER.index(name), column] = np.nan                        # no gradient, right or wrong

    fig, axes = figure(height=4.4)
    axes.grid(False)
    axes.set_facecolor("#f0f0f0")
    with np.errstate(divide="ignore"):
        picture = axes.imshow(np.log10(np.where(whole == 0, 1e-16, whole)), cmap="cividis_r", vmin=-3, vmax=-1, aspect="auto")
    for row, column in zip(*np.nonzero(whole == 0)):
        axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, color="white", ec="#dddddd"))
    row = ORDER.index("attention_norm.weight") - 0.5
    axes.plot([SPOILED + 0.5, SPOILED + 1.5], [row, row], color="#d55e00", linewidth=3)
    axes.annotate("the fault", (SPOILED + 1.5, row), (SPOILED + 2.2, row + 1.2), color="#d55e00",
                  arrowprops={"arrowstyle": "->", "color": "#d55e00"})
    axes.set_xticks(range(BLOCKS + 2), ["embed-\nding", *map(str, range(BLOCKS)), "final\nnorm"])
    axes.set_yticks(range(len(ORDER)), [name.removesuffix(".weight") for name in ORDER])
    axes.set_xlabel("block; backward goes from right to left, and down each column")
    axes.set_title("right (white) above the fault, wrong below it", fontsize=11)
    bar = fig.colorbar(picture, ax=axes, ticks=[-3, -2, -1])
    bar.ax.set_yticklabels(["0.001", "0.01", "0.1"])
    bar.set_label("relative error of the gradient")
    save(fig, "10-fault-shows-below")


if __name__ == "__main__":
    main()
