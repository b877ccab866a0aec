"""Make lessons/receipts/ch09.json: what a short training makes of the stream weights, and whether four streams beat one.

    python -m lessons.receipts.ch09
"""

from minimoe.cli import settle

settle()    # before NumPy is imported

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from minimoe.coding.data import batch
from minimoe.config import PRESETS
from minimoe.layers.softmax import softmax
from minimoe.model import MiniMoE
from minimoe.training.objective import pretraining_gradients
from minimoe.training.optim import AdamW, clip
from minimoe.training.parallel import Workers

SIZES = replace(PRESETS["nano"], blocks=8, streams=4)
SEEDS, STEPS, ROWS, LENGTH, LEARNING_RATE = (0, 1, 2), 100, 8, 64, 4e-3
LAST = 20     # steps whose mean loss is compared


def train(streams: int, seed: int) -> tuple[MiniMoE, list[float], dict[str, Any]]:
    """Return the trained model, its losses, and the first gradient of its stream weights."""
    model = MiniMoE(replace(SIZES, streams=streams), np.random.default_rng([seed, 0]))
    optimizer = AdamW(dict(model.named_parameters()), LEARNING_RATE)
    losses, first = [], {}
    with Workers(1, model.zero_grads) as workers:
        for step in range(1, STEPS + 1):
            ids, _ = batch(seed, step, ROWS, LENGTH + 1)
            grads, metrics = pretraining_gradients(model, ids, workers)
            if step == 1:
                first = {name: float(np.abs(grads[p]).max()) for name, p in stream_weights(model).items()}
            losses.append(metrics["loss"])
            optimizer.step(grads, clip(optimizer.parameters, grads, 1.0)[1])
    return model, losses, first


def stream_weights(model: MiniMoE) -> dict[str, Any]:
    return {name: p for name, p in model.named_parameters() if name.endswith((".read", ".write"))}


def main() -> None:
    compared: dict[str, list[float]] = {}
    for seed in SEEDS:
        for streams in (1, 4):
            model, losses, first = train(streams, seed)
            compared.setdefault(str(streams), []).append(round(float(np.mean(losses[-LAST:])), 4))
            if (streams, seed) != (4, 0):
                continue
            gradient, start = first, stream_weights(MiniMoE(SIZES, None))
            moved = {name: float(np.abs(p.data - start[name].data).max()) for name, p in stream_weights(model).items()}
            share = {name: softmax(p.data).astype(float).round(4).tolist() for name, p in stream_weights(model).items()}
    receipt = {
        "first_gradient": {name: float(f"{value:.2g}") for name, value in gradient.items()},
        "moved": {name: float(f"{value:.2g}") for name, value in moved.items()},
        "share": share,
        "loss": compared,
    }
    Path(__file__).with_suffix(".json").write_text(json.dumps(receipt) + "\n")


if __name__ == "__main__":
    main()
