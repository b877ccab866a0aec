"""Train a small model with three weights of the load-balance loss, for chapter 8.

    python -m lessons.receipts.ch08

Writes ch08.json beside itself, in about three minutes on one core: how evenly the rows of each block are spread, three seeds each.
"""

from minimoe.cli import settle

if __name__ == "__main__":
    settle()    # before NumPy is imported

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from minimoe.coding.data import batch
from minimoe.config import PRESETS
from minimoe.model import MiniMoE
from minimoe.pretrain import CLIP, DEFAULTS, INIT_STREAM
from minimoe.training import objective
from minimoe.training.optim import AdamW, clip
from minimoe.training.parallel import Workers

COEFFICIENTS = (0.0, 0.01, 0.1)
SEEDS, STEPS, EVERY, LAST = 3, 200, 4, 20
SIZES = replace(PRESETS["nano"], width=48, experts=8, expert_width=32)    # nano has four experts
ROWS, LENGTH = 8, 96


def effective(load: np.ndarray) -> np.ndarray:
    """Return how many experts are in use, exp of the entropy: load (...,E) of shares -> (...), from 1 to E."""
    return np.exp(-np.sum(load * np.log(np.maximum(load, 1e-300)), axis=-1))


def train(seed: int, coefficient: float) -> tuple[np.ndarray, np.ndarray]:
    """Train as `minimoe.pretrain` does; return each step's loss (steps,), and its load (steps,blocks,E)."""
    model = MiniMoE(SIZES, np.random.default_rng([seed, INIT_STREAM]))
    optimizer = AdamW(dict(model.named_parameters()), DEFAULTS["nano"]["learning_rate"])
    losses, loads = [], []
    usual, objective.BALANCE = objective.BALANCE, coefficient
    try:
        with Workers(1, model.zero_grads) as workers:
            for step in range(1, STEPS + 1):
                ids, _ = batch(seed, step, ROWS, LENGTH + 1)
                grads, metrics = objective.pretraining_gradients(model, ids, workers)
                _, scale = clip(optimizer.parameters, grads, CLIP)
                optimizer.step(grads, scale, run=workers.map)
                losses.append(metrics["loss"])
                loads.append(metrics["expert_load"])
    finally:
        objective.BALANCE = usual
    return np.array(losses), np.array(loads)


def main() -> None:
    runs = []
    for seed in range(SEEDS):
        for coefficient in COEFFICIENTS:
            losses, loads = train(seed, coefficient)
            load = loads[-LAST:].mean(axis=0)                             # (blocks,E)
            runs.append({
                "seed": seed, "coefficient": coefficient, "loss": round(float(losses[-LAST:].mean()), 4), "load": load.round(3).tolist(),
                "effective": effective(loads.reshape(STEPS // EVERY, EVERY, *load.shape).mean(axis=1)).round(2).tolist(),
            })
            print(f"seed {seed}, coefficient {coefficient}: loss {runs[-1]['loss']}, experts in use {effective(load).round(1)}", flush=True)
    path = Path(__file__).with_suffix(".json")
    path.write_text(json.dumps({"steps": STEPS, "every": EVERY, "last": LAST, "runs": runs}) + "\n")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
