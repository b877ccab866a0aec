"""Make lessons/receipts/ch12.json, from the metrics of a full pretraining, and by measuring what fresh memory costs.

    python -m lessons.receipts.ch12                          from checkpoints/pretrain/metrics.jsonl
    python -m lessons.receipts.ch12 PATH/metrics.jsonl       from another run's
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from lessons.solutions.ch12 import floor
from minimoe.coding.data import batch

EVERY = 10    # steps whose loss is kept; of the first ten, all
PASSES, TURNS = 6, 2

# Forward and backward of the full model on one microbatch, once all is warm: pages that the system hands out, and processor time
MEMORY = f"""
import json, resource, sys, time
from minimoe.cli import settle
if "settle" in sys.argv:
    settle()
import numpy as np
from minimoe.coding.data import batch
from minimoe.config import PRESETS
from minimoe.model import MiniMoE
from minimoe.training.losses import cross_entropy

model, ids = MiniMoE(PRESETS["full"], np.random.default_rng(0)), batch(0, 1, 8, 129)[0]

def usage():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return np.array([used.ru_minflt, 1000 * used.ru_stime, 1000 * (used.ru_stime + used.ru_utime)])

def both():
    logits, saved = model.forward(ids[:, :-1])
    _, dlogits = cross_entropy(logits, ids[:, 1:], weights)
    model.backward(dlogits, saved, grads)

grads, weights, passes = model.zero_grads(), np.full((8, 128), 1 / 4096, np.float32), []
for _ in range(2 + {PASSES}):
    before = usage()
    both()
    passes.append(usage() - before)
print(json.dumps(np.min(passes[2:], axis=0).tolist()))
"""


def memory() -> dict[str, dict[str, float]]:
    """Return what a microbatch costs with the memory that the C library gives by default, and with `settle`: the least of many passes.

    BLAS has one thread in both, so that nothing else differs.
    """
    least: dict[str, np.ndarray] = {}
    for _ in range(TURNS):
        for word in "default", "settle":
            run = subprocess.run(
                [sys.executable, "-c", MEMORY, word], capture_output=True, text=True, check=True, env=os.environ | {"OPENBLAS_NUM_THREADS": "1"}
            )
            least[word] = np.minimum(least.get(word, np.inf), json.loads(run.stdout))
    names = "pages", "system, ms", "processor, ms"
    return {word: dict(zip(names, numbers.round().astype(int).tolist())) for word, numbers in least.items()}


def main() -> None:
    metrics = Path(sys.argv[1] if len(sys.argv) > 1 else "checkpoints/pretrain/metrics.jsonl")
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    kept = [record for record in records if record["step"] <= 10 or record["step"] % EVERY == 0]
    receipt = {
        "command": "python -m minimoe.pretrain",
        "step": [record["step"] for record in kept],
        "loss": [round(record["loss"], 4) for record in kept],
        "floor": [round(float(floor(batch(0, record["step"], 32, 129)[0]).mean()), 4) for record in kept],
        "gradient_norm": [round(record["gradient_norm"], 3) for record in kept],
        "dev": {record["step"]: record["dev"] for record in records if record.get("dev")},
        "clipped_steps": sum(record["gradient_norm"] > 1 for record in records),
    }
    if sys.platform == "linux":
        receipt["memory"] = memory()
    Path(__file__).with_suffix(".json").write_text(json.dumps(receipt) + "\n")


if __name__ == "__main__":
    main()
