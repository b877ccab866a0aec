"""The figures of chapter 3: what RMSNorm's gradient looks like in a plane, and the derivative of silu beside two wrong ones.

    python -m lessons.figures.ch03
"""

import numpy as np

from lessons.figures.style import COLORS, figure, save
from minimoe.layers.experts import sigmoid
from minimoe.layers.rmsnorm import RMSNorm


def gradient_circles() -> None:
    norm = RMSNorm(2, np.float64)
    rings, angles = [0.8, 1.4, 2.0], 2 * np.pi * np.arange(12) / 12
    x = np.concatenate([radius * np.stack([np.cos(angles), np.sin(angles)], axis=1) for radius in rings])       # (N,2)
    upstream = np.array([0.6, 0.8])
    y, saved = norm.forward(x)
    dx = norm.backward(np.broadcast_to(upstream, x.shape).copy(), saved, {})

    turn = np.linspace(0, 2 * np.pi, 200)
    fig, (left, right) = figure(columns=2, width=7.0, height=3.7)
    for ax, at, arrows, color, title in [
        (left, y, np.broadcast_to(upstream, x.shape), COLORS[1], "upstream: the gradient of y"),
        (right, x, dx, COLORS[0], "downstream: the gradient of x"),
    ]:
        ax.plot(0, 0, "+", color="#333333", markersize=8)
        for radius in [np.sqrt(2)] if ax is left else rings:
            ax.plot(*radius * np.array([np.cos(turn), np.sin(turn)]), color="#bbbbbb", linewidth=0.8)
        ax.quiver(*at.T, *arrows.T, color=color, angles="xy", scale_units="xy", scale=3, width=0.008, headwidth=4)
        ax.set(title=title, xlim=(-2.35, 2.35), ylim=(-2.35, 2.35), aspect="equal", xlabel="channel 0")
        ax.title.set_fontsize(11)
    left.set_ylabel("channel 1")
    save(fig, "03-gradient-circles")


def silu_derivative() -> None:
    gate = np.linspace(-6, 6, 241)
    s = sigmoid(gate)
    fig, ax = figure()
    ax.plot(gate, s + gate * s * (1 - s), color=COLORS[0], linewidth=2.4, label="s + silu (1 - s), as it should be")
    ax.plot(gate, s, "--", color=COLORS[1], label="s: the sigmoid taken for a constant")
    ax.plot(gate, s + s * (1 - s), ":", color=COLORS[2], linewidth=2.2, label="s + s (1 - s): the gate forgotten")
    ax.plot([0, 1], [0.5, sigmoid(np.array(1.0)) * (2 - sigmoid(np.array(1.0)))], "o", color="#333333", markersize=6)
    ax.set(xlabel="gate", ylabel="derivative of silu")
    ax.legend(loc="upper left")
    save(fig, "03-silu-derivative")


def main() -> None:
    gradient_circles()
    silu_derivative()


if __name__ == "__main__":
    main()
