"""A short training run, number by number: a silent change of any part of it shows, on this machine or another."""

import json
from pathlib import Path

import numpy as np

from minimoe.coding.data import batch
from minimoe.config import PRESETS
from minimoe.model import MiniMoE
from minimoe.training.objective import pretraining_gradients
from minimoe.training.optim import AdamW, clip
from minimoe.training.parallel import Workers

TRACE = Path(__file__).with_name("trace.json")    # to write it anew after a change that is meant: python -m tests.test_trace


def losses(steps=20):
    """Cross entropy and gradient norm at each step of a micro run in float64."""
    model = MiniMoE(PRESETS["micro"], np.random.default_rng(0), np.float64)
    optimizer = AdamW(dict(model.named_parameters()), 4e-3, weight_decay=0.1)
    trace = []
    with Workers(2, model.zero_grads) as workers:
        for step in range(1, steps + 1):
            ids, _ = batch(0, step, 4, 41)
            grads, metrics = pretraining_gradients(model, ids, workers)
            norm, scale = clip(optimizer.parameters, grads, 1.0)
            optimizer.step(grads, scale, run=workers.map)
            trace.append([float(metrics["loss"]), float(metrics["balance_loss"]), float(norm)])
    return trace


def test_twenty_steps_are_as_they_were():
    np.testing.assert_allclose(losses(), json.loads(TRACE.read_text()), rtol=1e-9, atol=0)


if __name__ == "__main__":
    TRACE.write_text(json.dumps(losses(), indent=1) + "\n")
