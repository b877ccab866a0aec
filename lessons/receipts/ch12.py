"""Make lessons/receipts/ch12.json, from the metrics of a full pretraining, and by counting fresh pages of memory.

    python -m lessons.receipts.ch12                          from checkpoints/pretrain/metrics.jsonl
    python -m lessons.receipts.ch12 PATH/metrics.jsonl       from another run's
"""

import json
import subprocess
import sys
from pathlib import Path

from lessons.solutions.ch12 import floor
from minimoe.coding.data import batch

EVERY = 10    # steps whose loss is kept; of the first ten, all
PASSES = 10

# How many pages the system has handed out for one forward and backward of an MoE on a microbatch, once all is warm
FAULTS = f"""
import resource, sys
from minimoe.cli import settle
if "settle" in sys.argv:
    settle()
import numpy as np
from minimoe.layers.moe import MoE

rng = np.random.default_rng(0)
moe = MoE(192, 8, 384, 2, rng, np.float32)
x, grads = rng.standard_normal((8, 128, 192), np.float32), moe.zero_grads()

def both(times):
    for _ in range(times):
        y, saved = moe.forward(x)
        moe.backward(y, saved, grads)

both(3)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
both({PASSES})
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / {PASSES})
"""


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
        receipt["pages"] = {
            word: float(subprocess.run([sys.executable, "-c", FAULTS, word], capture_output=True, text=True, check=True).stdout)
            for word in ("default", "settle")
        }
    Path(__file__).with_suffix(".json").write_text(json.dumps(receipt) + "\n")


if __name__ == "__main__":
    main()
