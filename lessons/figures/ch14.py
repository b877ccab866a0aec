"""The figures of chapter 14, drawn with the chapter's own code: python -m lessons.figures.ch14"""

from pathlib import Path
from typing import Any

import numpy as np

from lessons.figures.style import COLORS, figure, save
from lessons.markdown import Page
from minimoe.training.losses import leave_one_out, log_softmax, policy_gradient


def chapter() -> dict[str, Any]:
    """What the chapter's blocks of code define, those without prompts."""
    text = (Path(__file__).parents[1] / "14-rloo.md").read_text(encoding="utf-8")
    names = {"np": np, "leave_one_out": leave_one_out, "log_softmax": log_softmax, "policy_gradient": policy_gradient}
    for fence in Page(text).fences:
        if fence.info == "python" and ">>>" not in fence.body:
            exec(fence.body, names)
    return names


def main() -> None:
    names = chapter()
    variance, none, climb = names["variance"], names["none"], names["climb"]

    fig, axes = figure()
    p = np.linspace(0.02, 0.98, 97)
    for T, color in zip((1, 4, 16, 64), COLORS):
        ratio = [variance(leave_one_out, x, T) / variance(none, x, T) for x in p]
        axes.plot(p, ratio, color=color, label=f"{T} token{'s' * (T > 1)}")
    axes.plot(p, 8 / 7 * (1 - p), ":", color=COLORS[6], label="8/7 (1 - p)")
    axes.axhline(1, color=COLORS[6], linewidth=0.8)
    axes.set(xlabel="p, the probability of a right answer", ylabel="variance, RLOO / REINFORCE", yscale="log", ylim=(0.02, 50),
             yticks=[0.1, 1, 10], yticklabels=["0.1", "1", "10"])
    axes.minorticks_off()
    axes.legend(loc="upper left")
    save(fig, "14-variance")

    fig, axes = figure()
    for stop_logit, color in (-2, COLORS[0]), (-4, COLORS[1]):
        chance = 1 / (1 + 2 * np.exp(-stop_logit))
        for scored, style, word in ("SAMPLED", "-", "scored"), ("MASKED", "--", "masked"):
            axes.plot(climb(stop_logit, names[scored]), style, color=color, label=f"stops with {100 * chance:.1g}% at first; stop {word}")
    axes.set(xlabel="step", ylabel="expected reward", ylim=(-0.15, 1.45), yticks=[0, 0.5, 1])
    axes.legend(loc="upper left", ncols=2, fontsize=9.5)
    save(fig, "14-stop")


if __name__ == "__main__":
    main()
