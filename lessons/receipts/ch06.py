"""Make lessons/receipts/ch06.json: what linear attention costs in chunks of 1 position, of all, and between.

    python -m lessons.receipts.ch06
"""

from minimoe.cli import settle

settle()    # before NumPy is imported

import json
import time
from pathlib import Path

import numpy as np

from minimoe.config import PRESETS
from minimoe.layers.linear_attention import LinearAttention

ROWS = {192: 8, 768: 2}                                                   # T: B, the same number of positions
CHUNK_SIZES = (1, 2, 4, 8, 16, 32, 64, 96, 192, 384, 768)
PASSES = 20


def main() -> None:
    c, rng = PRESETS["full"], np.random.default_rng(0)
    microseconds = {}
    for T, B in ROWS.items():
        x = rng.standard_normal((B, T, c.width), np.float32)
        layers = {C: LinearAttention(c.width, c.heads, c.head_width, C, rng, np.float32) for C in CHUNK_SIZES if C <= T}
        best = dict.fromkeys(layers, np.inf)
        for _ in range(PASSES):                                           # in turn, so that a busy moment hits them all
            for C, layer in layers.items():
                start = time.thread_time()
                y, saved = layer.forward(x)
                layer.backward(y, saved, {})
                best[C] = min(best[C], time.thread_time() - start)
        microseconds[T] = {C: round(1e6 * seconds / (B * T), 2) for C, seconds in best.items()}
    receipt = {"what": "processor time of forward and backward of one layer, full size, microseconds a position", "time": microseconds}
    Path(__file__).with_suffix(".json").write_text(json.dumps(receipt, indent=1) + "\n")


if __name__ == "__main__":
    main()
