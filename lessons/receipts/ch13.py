"""What a token costs the full model, by how many stand before it: with state, and reading everything again.

    python -m lessons.receipts.ch13       (half a minute)

Writes lessons/receipts/ch13.json: the least processor time of one thread in several rounds, for what else runs on the machine can
only add to it. The weights are random: what they say costs the same.
"""

from minimoe.cli import run, settle

if __name__ == "__main__":
    settle()    # before NumPy is imported

import json
import platform
import time
from pathlib import Path

import numpy as np

from minimoe.config import PRESETS
from minimoe.model import MiniMoE

LENGTHS = 8, 16, 32, 48, 64, 96, 128, 160, 191
ROUNDS = 20
WITH, AGAIN = "with state, ms", "again, ms"


def main() -> None:
    model, rng = MiniMoE(PRESETS["full"], np.random.default_rng(0)), np.random.default_rng(1)
    calls = {}
    for length in LENGTHS:
        ids = rng.integers(4, 260, (1, length + 1))
        _, state = model.step(ids[:, :-1])
        calls[length, WITH] = lambda ids=ids, state=state: model.step(ids[:, -1:], state)
        calls[length, AGAIN] = lambda ids=ids: model.forward(ids)
    least = dict.fromkeys(calls, np.inf)
    for _ in range(ROUNDS):                                               # in turn, so that a slow second slows all alike
        for which, call in calls.items():
            begin = time.process_time()
            call()
            least[which] = min(least[which], 1000 * (time.process_time() - begin))
    rows = [{"before": length} | {name: round(least[length, name], 2) for name in (WITH, AGAIN)} for length in LENGTHS]
    about = f"{platform.system()} {platform.machine()}, NumPy {np.__version__}, processor time of one thread"
    path = Path(__file__).with_suffix(".json")
    path.write_text(json.dumps({"machine": about, "rounds": ROUNDS, "rows": rows}, indent=2) + "\n")
    for row in rows:
        print(row)


if __name__ == "__main__":
    run(main)
