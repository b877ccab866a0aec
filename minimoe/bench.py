"""Measure what the model costs on this machine, against limits that are measured in the same run.

    python -m minimoe.bench                         the full model: training, decoding, verdicts, memory
    python -m minimoe.bench --against torch         and the same model in PyTorch, in turn with ours
    python -m minimoe.bench --length                how cost grows with the length of a row, instead

Training: a step as minimoe.pretrain takes it (forward, losses, backward, the sum over microbatches, clipping, AdamW), against
the products of its weight matrices alone, of the step's own shapes, into arrays that are already there. Decoding: a step of
minimoe.generate, against reading the weights once. What is compared is timed in turn, several times; all times are medians.

--against torch needs PyTorch, and tests/torch_twin.py of a clone of the repository.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from minimoe.cli import Parser, output_file, positive_int, run, settle

if __name__ == "__main__":
    settle()    # before NumPy is imported

import numpy as np

from minimoe.coding.data import batch
from minimoe.coding.tasks import fixed_tasks
from minimoe.coding.verifier import verify
from minimoe.config import PRESETS, ModelConfig
from minimoe.errors import InputError
from minimoe.layers.hyper_connection import Read, Write
from minimoe.layers.linear_attention import LinearAttention
from minimoe.layers.moe import MoE
from minimoe.layers.rmsnorm import RMSNorm
from minimoe.layers.sparse_attention import SparseAttention
from minimoe.model import CONFIG, MiniMoE
from minimoe.training.objective import MAX_TOKENS, pretraining_gradients
from minimoe.training.optim import AdamW, clip
from minimoe.training.parallel import MICROBATCHES, Workers

KINDS = LinearAttention, SparseAttention, MoE, RMSNorm, Read, Write    # none stands inside another
PROMPT, NEW = 64, 32                       # tokens read, and then written one at a time, when decoding is timed
LENGTHS = 128, 256, 512, 1024, 2048, 4096
LONGEST_SPARSE = 1024                      # T x T scores
Figures = dict[str, Any]


def in_turn(functions: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Return the median seconds of each, called one after the other; the first round pays for memory, and is not counted."""
    times = defaultdict(list)
    for _ in range(repeats + 1):
        for name, function in functions.items():
            begin = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - begin)
    return {name: median(values[1:]) for name, values in times.items()}


# training


def products(config: ModelConfig, rows: int) -> list[tuple[int, int, int]]:
    """Return (rows, inputs, outputs) of every weight matrix that a microbatch of `rows` tokens meets, experts evenly used."""
    D, F, k = config.width, config.expert_width, config.experts_per_token
    block = [(rows, D, 3 * D), (rows, D, D), (rows, D, config.experts), (rows, D, 2 * F), (rows, F, D)]
    block += [(rows * k // config.experts, D, 2 * F), (rows * k // config.experts, F, D)] * config.experts
    return block * config.blocks + [(rows, D, config.vocabulary)]


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


def training(config: ModelConfig, rows: int, length: int, threads: int, repeats: int, twin: Any) -> Figures:
    """Time a step of pretraining, its parts, the products in it and, if there is a `twin`, its step."""
    model = MiniMoE(config, np.random.default_rng(0))
    optimizer = AdamW(dict(model.named_parameters()), learning_rate=3e-4)
    shapes = products(config, rows * length // MICROBATCHES)
    computes = [multiply(shapes) for _ in range(MICROBATCHES)]
    ids, _ = batch(0, 1, rows, length + 1)
    parts = defaultdict(list)
    with Workers(threads, model.zero_grads) as workers:

        def step() -> None:
            clock = [time.perf_counter()]
            grads, _ = pretraining_gradients(model, ids, workers)
            clock.append(time.perf_counter())
            _, scale = clip(optimizer.parameters, grads, 1.0)
            clock.append(time.perf_counter())
            optimizer.step(grads, scale, run=workers.map)
            clock.append(time.perf_counter())
            for name, begin, end in zip(("gradients", "clip", "adamw"), clock, clock[1:]):
                parts[name].append(end - begin)

        functions = {"products": lambda: list(workers.map(lambda compute: compute(), computes)), "step": step}
        if twin:
            other = twin.MiniMoE(config)
            other_optimizer, other_ids = twin.adamw(other), twin.torch.from_numpy(ids)
            functions["torch step"] = lambda: twin.train_step(other, other_optimizer, other_ids, twin.MICROBATCHES)
        seconds = in_turn(functions, repeats)
        seconds |= {name: median(times[1:]) for name, times in parts.items()}
        with stopwatch() as layers:
            for _ in range(repeats):
                step()
    seconds |= {name: layer / threads / repeats for name, layer in layers.items()}
    flops = 6 * MICROBATCHES * sum(n * i * o for n, i, o in shapes)
    return {
        "seconds": seconds, "GFLOP/s of the products": flops / seconds["products"] / 1e9,
        "tokens/s": rows * length / seconds["step"], "step / products": seconds["step"] / seconds["products"],
    } | ({"step / torch": seconds["step"] / seconds["torch step"]} if twin else {})


@contextmanager
def stopwatch() -> Iterator[dict[str, float]]:
    """Within it, time every forward and backward of the KINDS: seconds by name, of all threads together."""
    seconds: dict[str, float] = defaultdict(float)
    lock, whole = threading.Lock(), {}

    def timed(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any) -> Any:
            begin = time.perf_counter()
            result = method(*args)
            with lock:
                seconds[name] += time.perf_counter() - begin
            return result

        return wrapper

    for kind in KINDS:
        for way in "forward", "backward":
            whole[kind, way] = getattr(kind, way)
            setattr(kind, way, timed(f"{kind.__name__}.{way}", whole[kind, way]))
    try:
        yield seconds
    finally:
        for (kind, way), method in whole.items():
            setattr(kind, way, method)


# decoding


def decoding(config: ModelConfig, threads: int, repeats: int, twin: Any) -> dict[str, Figures]:
    """Time the writing of a token a row, by batch size, against reading the weights that one token or many meet."""
    model = MiniMoE(config, np.random.default_rng(0))
    other: Any = twin.MiniMoE(config) if twin else None
    weights = [p.data.reshape(-1) for _, p in model.named_parameters()]
    pieces = [piece for w in weights for piece in np.array_split(w, -(-w.size // 2**19))]
    counts = model.parameter_counts()
    rng, result = np.random.default_rng(1), {}
    with Workers(threads, dict) as workers:
        for B in 1, 64:
            prompts = rng.integers(4, config.vocabulary, (B, PROMPT))

            def write() -> None:
                logits, state = model.step(prompts)
                for _ in range(NEW):
                    logits, state = model.step(logits[:, -1:].argmax(axis=-1), state)

            functions = {
                "read": lambda: model.step(prompts), "write": write,
                "weights": lambda: list(workers.map(lambda w: np.dot(w, w), pieces)),
            }
            if twin:
                ids = twin.torch.from_numpy(prompts)

                def on(threads: int, function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
                    return lambda: (twin.torch.set_num_threads(threads), function(*arguments))

                for n in sorted({1, threads}):                            # few rows are faster on one thread
                    functions[f"torch read {n}"] = on(n, other.step, ids)
                    functions[f"torch write {n}"] = on(n, twin.decode, other, ids, NEW + 1)
            seconds = in_turn(functions, repeats)
            share = 1.0 if B > 1 else counts["active"] / counts["total"]
            token, limit = (seconds["write"] - seconds["read"]) / NEW, seconds["weights"] * share
            figures = {"seconds": token, "limit": limit, "tokens/s": B / token, "step / limit": token / limit}
            if twin:
                best = min(seconds[f"torch write {n}"] - seconds[f"torch read {n}"] for n in {1, threads})
                figures["torch seconds"] = best / NEW
                figures["step / torch"] = token / figures["torch seconds"]
            result[f"batch {B}"] = figures
    return result


def verdicts() -> float:
    """Return how many right solutions a second the verifier judges, on one core."""
    tasks = fixed_tasks("dev", 32)
    return len(tasks) / in_turn({"all": lambda: [verify(task, task.prompt + task.solution) for task in tasks]}, 5)["all"]


# whole commands, in processes of their own


def child(*arguments: str) -> int:
    """Run Python with these arguments, quietly; return the most memory it had, in bytes; 0 where the system does not say."""
    peak = 0
    with subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        errors = process.stderr.read() if process.stderr else ""
        if hasattr(os, "wait4"):
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    if process.returncode:
        raise InputError("a run to be measured failed: " + (errors.strip().splitlines() or ["it said nothing"])[-1])
    return peak


def memory(preset: str, rows: int, length: int, threads: int, twin: Any) -> Figures:
    """Return the most memory, in GB, that a training of two steps takes."""
    with tempfile.TemporaryDirectory() as folder:
        options = f"--preset {preset} --steps 2 --batch-size {rows} --sequence-length {length} --threads {threads}"
        figures = {"pretrain": child("-m", "minimoe.pretrain", *options.split(), "--save-at", "", "--out", f"{folder}/run") / 1e9}
    if twin:
        code = f"from tests.torch_twin import *; from minimoe.config import PRESETS; model = MiniMoE(PRESETS['{preset}']); "
        code += f"ids = torch.randint(4, 260, ({rows}, {length + 1})); optimizer = adamw(model); "
        code += "[train_step(model, optimizer, ids, MICROBATCHES) for _ in range(2)]"
        figures["torch"] = child("-c", code) / 1e9
    return figures


def group(checkpoint: Path, threads: int) -> Figures:
    """Return the mean seconds of the parts of an RLOO step, over a few groups from `checkpoint`."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--base", str(checkpoint), "--groups", "8", "--save-at", "", "--threads", str(threads)]
        child("-m", "minimoe.rloo", *options, "--out", f"{folder}/run")
        records = [json.loads(line) for line in Path(folder, "run", "metrics.jsonl").read_text().splitlines()]
    names = "sampling_seconds", "verifying_seconds", "updating_seconds", "seconds"
    return {name: sum(record[name] for record in records) / len(records) for name in names}


# length


def length_sweep(config: ModelConfig, rows: int, repeats: int) -> dict[int, Figures]:
    """Time forward and backward of a layer of each attention on a microbatch, and a token decoded by the linear one, by T."""
    rng = np.random.default_rng(0)
    result: dict[int, Figures] = {}
    sizes = config.width, config.heads, config.head_width
    linear = LinearAttention(*sizes, config.chunk_size, rng, np.float32)
    sparse = SparseAttention(*sizes, config.sparse_top_k, rng, np.float32)
    for T in LENGTHS:
        x = rng.standard_normal((rows, T, config.width), np.float32)
        _, state = linear.step(x, None)

        def train(layer: Any) -> None:
            y, saved = layer.forward(x)
            layer.backward(y, saved, layer.zero_grads())

        functions = {
            "linear": lambda: train(linear), "linear, a token": lambda: [linear.step(x[:, :1], state) for _ in range(100)],
        }
        if T <= LONGEST_SPARSE:
            functions["sparse"] = lambda: train(sparse)
        seconds = in_turn(functions, repeats)
        seconds["linear, a token"] /= 100
        first = result.get(LENGTHS[0], seconds)
        result[T] = seconds | {f"{name} / {LENGTHS[0]}": seconds[name] / first[name] for name in seconds}
    return result


# what it ran on, and the tables


def machine(threads: int, twin: Any) -> dict[str, Any]:
    """Return what this machine is to a reader of the figures."""
    built = np.show_config(mode="dicts")
    blas = built["Build Dependencies"]["blas"]
    found = built.get("SIMD Extensions", {})
    about = {
        "system": f"{platform.system()} {platform.machine()}", "cores": os.cpu_count(), "threads": threads,
        "SIMD": (found.get("found") or found.get("baseline") or ["?"])[-1], "python": platform.python_version(),
        "numpy": np.__version__, "BLAS": f"{blas['name']} {blas['version']}, one thread each",
    }
    limits = {name: os.environ[name] for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE") if name in os.environ}
    return about | limits | ({"torch": f"{twin.torch.__version__}, {twin.torch.get_num_threads()} threads"} if twin else {})


def training_table(figures: Figures, memory: Figures) -> str:
    seconds = figures["seconds"]
    lines = [f"{'training':32}{'seconds':>9}{'of products':>13}"]
    order = ["products", "step", "gradients", "clip", "adamw"]
    layers = sorted((name for name in seconds if "." in name), key=lambda name: -seconds[name])
    for name in [*order, *layers, *(["torch step"] if "torch step" in seconds else [])]:
        indent = "    " * (name in layers) + "  " * (name in order[2:])
        lines.append(f"{indent + name:32}{seconds[name]:9.3f}{seconds[name] / seconds['products']:13.2f}")
    rate = figures["GFLOP/s of the products"]
    lines.append(f"{figures['tokens/s']:,.0f} tokens/s; the products alone run at {rate:.0f} GFLOP/s")
    lines.append("; ".join(f"{name}: at most {value:.2f} GB of memory" for name, value in memory.items()))
    if "step / torch" in figures:
        lines.append(f"a step takes {figures['step / torch']:.2f} of PyTorch's time")
    return "\n".join(lines)


def decoding_table(figures: dict[str, Figures]) -> str:
    columns = {"seconds": "ms a token", "limit": "ms limit", "step / limit": "of limit", "tokens/s": "tokens/s"}
    columns |= {"torch seconds": "torch ms", "step / torch": "of torch"}
    columns = {name: title for name, title in columns.items() if name in figures["batch 1"]}
    lines = [f"{'decoding':12}" + "".join(f"{title:>12}" for title in columns.values())]
    for name, values in figures.items():
        shown = (1e3 * values[c] if "ms" in title else values[c] for c, title in columns.items())
        lines.append(f"{name:12}" + "".join(f"{value:12,.2f}" for value in shown))
    return "\n".join(lines)


def length_table(figures: dict[int, Figures]) -> str:
    lines = [f"{'length':>7}{'linear, s':>12}{'of first':>10}{'sparse, s':>12}{'of first':>10}{'linear token, us':>18}"]
    for T, f in figures.items():
        sparse = f"{f['sparse']:12.4f}{f[f'sparse / {LENGTHS[0]}']:10.1f}" if "sparse" in f else " " * 22
        lines.append(f"{T:7}{f['linear']:12.4f}{f[f'linear / {LENGTHS[0]}']:10.1f}{sparse}{1e6 * f['linear, a token']:18.0f}")
    return "\n".join(lines)


def load_twin(threads: int) -> Any:
    """Return the module of the model in PyTorch, PyTorch set to `threads`."""
    try:
        import torch

        from tests import torch_twin
    except ImportError as error:
        raise InputError(f"--against torch: {error}; in a clone of the repository: pip install -e '.[bench]'") from None
    torch.set_num_threads(threads)
    return torch_twin


def main() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument("--preset", choices=list(PRESETS), default="full", help="sizes of the model")
    parser.add_argument("--batch-size", type=positive_int, default=32, help="rows of a batch")
    parser.add_argument("--sequence-length", type=positive_int, default=128, help="tokens of a row")
    parser.add_argument("--threads", type=positive_int, default=min(MICROBATCHES, os.cpu_count() or 1), help="threads")
    parser.add_argument("--repeats", type=positive_int, default=7, help="times that each is measured")
    parser.add_argument("--against", choices=["torch"], help="what to compare with")
    parser.add_argument("--checkpoint", type=Path, help="a trained model, to time groups of minimoe.rloo from it")
    parser.add_argument("--length", action="store_true", help=f"time the attentions at lengths {LENGTHS[0]} to {LENGTHS[-1]}")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="also write the figures there")
    args = parser.parse_args()
    config = PRESETS[args.preset]
    if args.sequence_length > config.context:
        raise InputError(f"--sequence-length {args.sequence_length} exceeds the model's context, {config.context}")
    if args.batch_size * args.sequence_length > MAX_TOKENS:
        raise InputError(f"--batch-size {args.batch_size}: more than {MAX_TOKENS:,} tokens a step")
    if args.checkpoint and not (args.checkpoint / CONFIG).exists():
        raise InputError(f"--checkpoint {args.checkpoint} is no checkpoint: it has no {CONFIG}")
    if args.length and (args.checkpoint or args.against):
        raise InputError("--length times the attentions alone; leave out --checkpoint and --against")
    twin = load_twin(args.threads) if args.against else None
    figures: Figures = {"machine": machine(args.threads, twin)}
    print(", ".join(f"{name} {value}" for name, value in figures["machine"].items()) + "\n", flush=True)
    if args.length:
        figures["length"] = length_sweep(config, args.batch_size // MICROBATCHES or 1, args.repeats)
        print(length_table(figures["length"]))
    else:
        sizes = args.batch_size, args.sequence_length, args.threads
        figures["memory"] = memory(args.preset, *sizes, twin)
        figures["training"] = training(config, *sizes, args.repeats, twin)
        print(training_table(figures["training"], figures["memory"]) + "\n", flush=True)
        figures["decoding"] = decoding(config, args.threads, args.repeats, twin)
        print(decoding_table(figures["decoding"]) + "\n", flush=True)
        figures["verdicts/s"] = verdicts()
        print(f"{figures['verdicts/s']:,.0f} verdicts/s on one core")
        if args.checkpoint:
            figures["rloo"] = group(args.checkpoint, args.threads)
            print("a group of minimoe.rloo, mean: " + ", ".join(f"{k} {v:.3f}" for k, v in figures["rloo"].items()))
    if args.json:
        settings = {name: value for name, value in vars(args).items() if name != "json"}
        args.json.write_text(json.dumps({"settings": settings} | figures, indent=2, default=str) + "\n")


if __name__ == "__main__":
    run(main)
