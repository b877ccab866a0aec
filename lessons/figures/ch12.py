"""The figures of chapter 12: python -m lessons.figures.ch12"""

import json
from itertools import cycle
from pathlib import Path

from lessons.figures.style import COLORS, figure, save

ROOT = Path(__file__).parents[2]


def loss() -> None:
    """The loss of the full run nears what nobody can predict, and tasks are solved late."""
    receipt = json.loads((ROOT / "lessons/receipts/ch12.json").read_text())
    fig, (left, right) = figure(2)
    left.plot(receipt["step"], receipt["loss"], label="the model")
    left.plot(receipt["step"], receipt["floor"], "--", color=COLORS[6], label="a perfect predictor")
    left.set(xlabel="step", ylabel="loss, nats a byte", yscale="log",
             yticks=[0.2, 0.5, 1, 2, 5], yticklabels=["0.2", "0.5", "1", "2", "5"])
    left.minorticks_off()
    left.legend(loc="upper right")
    dev = {int(step): solved for step, solved in receipt["dev"].items()}
    right.plot(list(dev), [sum(solved.values()) for solved in dev.values()], "o-", markersize=4)
    right.set(xlabel="step", ylabel="functions solved, of 64", xlim=(-15, None), ylim=(-2, 66))
    save(fig, "12-loss")


def step() -> None:
    """Half of a step is the products of its weight matrices."""
    figures = json.loads((ROOT / "checkpoints/results/bench.json").read_text())
    seconds = figures["training"]["seconds"]
    parts = {
        "MoE": seconds["MoE.forward"] + seconds["MoE.backward"],
        "attention": sum(seconds[f"{kind}Attention.{way}"] for kind in ("Linear", "Sparse") for way in ("forward", "backward")),
        "norms, streams": sum(seconds[f"{kind}.{way}"] for kind in ("RMSNorm", "Read", "Write") for way in ("forward", "backward")),
    }
    parts["rest"] = seconds["gradients"] - sum(parts.values())
    parts["clip, AdamW"] = seconds["clip"] + seconds["adamw"]
    fig, axes = figure(height=2.9)
    start, sides = 0.0, cycle(["right", "center", "left"])                # where the names of short parts go, away from each other
    for (name, length), color in zip(parts.items(), COLORS):
        axes.barh(1, length, left=start, color=color, height=0.62, edgecolor="white")
        if length > 0.3:
            axes.text(start + length / 2, 1, name, ha="center", va="center", color="white", fontsize=9.5)
        else:
            axes.annotate(name, (start + length / 2, 1.31), (start + length / 2, 1.55), ha=next(sides), fontsize=9.5,
                          arrowprops={"arrowstyle": "-", "color": COLORS[6], "lw": 0.8})
        start += length
    axes.barh(2.4, seconds["products"], color=COLORS[6], height=0.62)
    axes.barh(-0.1, seconds["torch step"], color="#999999", height=0.62)
    axes.set(yticks=[2.4, 1, -0.1], yticklabels=["its products alone", "a step", "the same step\nin PyTorch"],
             xlabel="seconds", xlim=(0, 1.15 * seconds["step"]))
    axes.grid(axis="y", visible=False)
    save(fig, "12-step")


def main() -> None:
    loss()
    step()


if __name__ == "__main__":
    main()
