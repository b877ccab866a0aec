"""Figure of chapter 13: what state costs, and what it saves.

    python -m lessons.figures.ch13

Times come from lessons/receipts/ch13.json; the sizes are counted here.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from minimoe.config import PRESETS, ModelConfig
from minimoe.model import MiniMoE

RECEIPT = Path(__file__).parents[1] / "receipts" / "ch13.json"


def kept(config: ModelConfig, lengths: list[int]) -> list[int]:
    """Return how many numbers one sequence leaves in the state, by its length; positions, whole numbers, are not counted."""
    model, sizes = MiniMoE(config, np.random.default_rng(0)), []
    for length in lengths:
        _, state = model.step(np.full((1, length), 9))
        sizes.append(sum(a.size for part in state for a in vars(part).values() if a.dtype.kind == "f"))
    return sizes


def main() -> None:
    from lessons.figures.style import COLORS, figure, save

    lengths = [1, 64, 128, 192]
    thin = dict(experts=2, expert_width=8)                                # experts keep nothing, and take time
    mixed = kept(replace(PRESETS["full"], **thin), lengths)
    ordinary = kept(replace(PRESETS["full"], sparse_every=1, **thin), lengths)
    rows = json.loads(RECEIPT.read_text())["rows"]

    fig, (memory, time) = figure(columns=2, height=3.5)
    memory.plot(lengths, np.array(ordinary) / 1000, color=COLORS[1])
    memory.plot(lengths, np.array(mixed) / 1000, color=COLORS[0])
    memory.annotate("12 layers of\nordinary attention", (20, 560), color=COLORS[1])
    memory.annotate("9 linear, 3 sparse", (100, 60), color=COLORS[0])
    memory.set_title("what is kept", fontsize=11)
    memory.set_ylabel("thousand numbers a sequence")
    memory.set_xlabel("positions read")

    before = [row["before"] for row in rows]
    time.plot(before, [row["again, ms"] for row in rows], "o-", color=COLORS[1], markersize=4)
    time.plot(before, [row["with state, ms"] for row in rows], "o-", color=COLORS[0], markersize=4)
    time.annotate("everything\nread again", (40, 0.72 * rows[-1]["again, ms"]), color=COLORS[1])
    time.annotate("a step from the state", (70, 1.9 * rows[-1]["with state, ms"]), color=COLORS[0])
    time.set_title("what the next id takes", fontsize=11)
    time.set_ylabel("milliseconds")
    time.set_xlabel("positions before it")
    for axes in memory, time:
        axes.set_xlim(0, 195)
        axes.set_ylim(0)
    save(fig, "13-state")


if __name__ == "__main__":
    main()
