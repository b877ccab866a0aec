"""Measure a pretraining step against the matrix products in it.

    python -m minimoe.bench                         the full model, batches of 32 x 128 tokens

Both are timed in turn, several times, on the same threads: the step as minimoe.pretrain takes it (forward, losses,
backward, the sum over microbatches, clipping, AdamW), and the products of its weight matrices alone, with the step's own
shapes, into arrays that are already there. Medians; the ratio says how much of a step is not matrix products.
"""

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from statistics import median

from minimoe.cli import Parser, output_file, positive_int, run, settle

if __name__ == "__main__":
    settle()    # before NumPy is imported

import numpy as np

from minimoe.coding.data import batch
from minimoe.config import PRESETS, ModelConfig
from minimoe.model import MiniMoE
from minimoe.training.objective import pretraining_gradients
from minimoe.training.optim import AdamW, global_norm
from minimoe.training.parallel import MICROBATCHES, Workers


def products(config: ModelConfig, rows: int) -> Iterator[tuple[int, int, int]]:
    """Yield (rows, inputs, outputs) of every weight matrix that a microbatch of `rows` tokens meets, experts evenly used."""
    D, F, k = config.width, config.expert_width, config.experts_per_token
    for _ in range(config.blocks):
        yield from [(rows, D, 3 * D), (rows, D, D), (rows, D, config.experts), (rows, D, 2 * F), (rows, F, D)]
        yield from [(rows * k // config.experts, D, 2 * F), (rows * k // config.experts, F, D)] * config.experts
    yield rows, D, config.vocabulary


def multiply(shapes: list[tuple[int, int, int]]) -> Callable[[], None]:
    """Return a function that computes y = x W^T, dx = dy W and dW = dy^T x for each shape."""
    rng = np.random.default_rng(0)
    arrays = {}
    for n, i, o in shapes:
        arrays[n, i, o] = [rng.standard_normal(shape, np.float32) for shape in [(n, i), (o, i), (n, o), (n, i), (o, i)]]

    def compute() -> None:
        for shape in shapes:
            x, w, y, dx, dw = arrays[shape]
            np.matmul(x, w.T, out=y)
            np.matmul(y, w, out=dx)
            np.matmul(y.T, x, out=dw)

    return compute


def measure(preset: str, rows: int, length: int, threads: int, repeats: int) -> dict[str, float]:
    """Return the figures, by name; times are medians in seconds."""
    config = PRESETS[preset]
    model = MiniMoE(config, np.random.default_rng(0))
    optimizer = AdamW(dict(model.named_parameters()), learning_rate=3e-4)
    shapes = list(products(config, rows * length // MICROBATCHES))
    computes = [multiply(shapes) for _ in range(MICROBATCHES)]
    times = {"products": [], "gradients": [], "clip": [], "adamw": [], "step": []}
    with Workers(threads, model.zero_grads) as workers:
        for repeat in range(repeats + 1):
            ids, _ = batch(0, repeat, rows, length + 1)
            clock = [time.perf_counter()]
            list(workers.map(lambda compute: compute(), computes))
            clock.append(time.perf_counter())
            grads, _ = pretraining_gradients(model, ids, workers)
            clock.append(time.perf_counter())
            norm = global_norm(grads)
            clock.append(time.perf_counter())
            optimizer.step(grads, scale=min(1.0, 1 / norm), run=workers.map)
            clock.append(time.perf_counter())
            if repeat:                                                    # the first pays for memory and start-up
                for name, begin, end in zip(times, clock, clock[1:]):
                    times[name].append(end - begin)
                times["step"].append(clock[-1] - clock[1])
    flops = 6 * MICROBATCHES * sum(n * i * o for n, i, o in shapes)
    figures = {f"{name}, s": median(values) for name, values in times.items()}
    return figures | {
        "step / products": median(s / p for s, p in zip(times["step"], times["products"])),
        "tokens/s": rows * length / figures["step, s"],
        "products, GFLOP/s": flops / figures["products, s"] / 1e9,
        "peak memory, GB": peak_memory() / 1e9,
    }


def peak_memory() -> float:
    """Return the most memory that this process has had, in bytes; NaN where the system does not say."""
    if sys.platform == "win32":
        return math.nan
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument("--preset", choices=list(PRESETS), default="full", help="sizes of the model")
    parser.add_argument("--batch-size", type=positive_int, default=32, help="rows of a batch")
    parser.add_argument("--sequence-length", type=positive_int, default=128, help="tokens of a row")
    parser.add_argument("--threads", type=positive_int, default=min(MICROBATCHES, os.cpu_count() or 1), help="threads")
    parser.add_argument("--repeats", type=positive_int, default=7, help="times that each is measured")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="also write the figures there")
    args = parser.parse_args()
    figures = measure(args.preset, args.batch_size, args.sequence_length, args.threads, args.repeats)
    for name, value in figures.items():
        print(f"{name:20} {value:12,.3f}")
    if args.json:
        args.json.write_text(json.dumps(vars(args) | figures, indent=2, default=str) + "\n")


if __name__ == "__main__":
    run(main)
