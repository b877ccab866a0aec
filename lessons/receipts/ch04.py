"""Train the nano preset with three rotations, for chapter 4.

    python -m lessons.receipts.ch04

Writes ch04.json beside itself, in about five minutes on one core: the loss of every fifth step, three seeds for each.
"""

from minimoe.cli import settle

if __name__ == "__main__":
    settle()    # before NumPy is imported

import json
from contextlib import nullcontext
from pathlib import Path

import numpy as np

from lessons.checks.ch04 import FAULTS, MODULE
from lessons.mutants import planted
from lessons.mutants import Mutant
from minimoe.coding.data import batch
from minimoe.config import PRESETS
from minimoe.model import MiniMoE
from minimoe.pretrain import CLIP, COMMON, DEFAULTS, INIT_STREAM
from minimoe.training.objective import pretraining_gradients
from minimoe.training.optim import AdamW, clip
from minimoe.training.parallel import Workers

STEPS, EVERY, SEEDS = 120, 5, 3
VARIANTS = {
    "as it stands": None,
    "no minus in the exponent": FAULTS[0],
    "no rotation": Mutant("no rotation", "rope", MODULE, "np.exp(1j * angles)", "np.exp(0j * angles)", ""),
}


def losses(seed: int) -> list[float]:
    """Train the nano preset as `minimoe.pretrain` does; return the loss of each step."""
    settings = DEFAULTS["nano"] | COMMON
    model = MiniMoE(PRESETS["nano"], np.random.default_rng([seed, INIT_STREAM]))
    optimizer = AdamW(dict(model.named_parameters()), settings["learning_rate"], weight_decay=settings["weight_decay"])
    result = []
    with Workers(1, model.zero_grads) as workers:
        for step in range(1, STEPS + 1):
            ids, _ = batch(seed, step, settings["batch_size"], settings["sequence_length"] + 1)
            grads, metrics = pretraining_gradients(model, ids, workers)
            _, scale = clip(optimizer.parameters, grads, CLIP)
            optimizer.step(grads, scale, run=workers.map)
            result.append(float(metrics["loss"]))
    return result


def main() -> None:
    runs: dict[str, list[list[float]]] = {name: [] for name in VARIANTS}
    for seed in range(SEEDS):
        for name, mutant in VARIANTS.items():
            with planted(mutant) if mutant else nullcontext():
                mean = np.reshape(losses(seed), (-1, EVERY)).mean(axis=1)     # over five steps
            runs[name].append([round(float(loss), 3) for loss in mean])
            print(f"seed {seed}, {name}: {runs[name][-1][-1]}", flush=True)
    path = Path(__file__).with_suffix(".json")
    path.write_text(json.dumps({"steps": STEPS, "every": EVERY, "loss": runs}) + "\n")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
