"""Pretrain a model on synthetic Python.

    python -m minimoe.pretrain                      the full model, 400 steps
    python -m minimoe.pretrain --preset nano        a small one, in seconds
    python -m minimoe.pretrain --resume             go on after Ctrl-C, or after a crash
    mpirun -n 2 python -m minimoe.pretrain          on two processes, or machines, that share every batch; needs mpi4py

Writes into --out: metrics.jsonl, a line for every step; last/, from which --resume goes on; and a folder for each step of
--save-at, such as step-0085/, which minimoe.generate and minimoe.rloo can read.
"""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

from minimoe.cli import (
    Parser, non_negative_float, non_negative_int, positive_float, positive_int, run, settle, steps_list, until_interrupt,
)

if __name__ == "__main__":
    settle()    # before NumPy is imported

import json
import os
import warnings

import numpy as np

from minimoe.coding.data import batch
from minimoe.coding.scoring import DEV_TASKS, Attempt, greedy, solved_by_family
from minimoe.coding.tasks import FAMILIES, fixed_tasks
from minimoe.config import PRESETS
from minimoe.errors import InputError
from minimoe.files import alone
from minimoe.model import MiniMoE
from minimoe.training.checkpoint import RUN, begin_settings, is_like, load_moments, load_run, resume_settings, save_training
from minimoe.training.objective import MAX_TOKENS, pretraining_gradients
from minimoe.training.optim import CLIP, AdamW, clip
from minimoe.training.parallel import MICROBATCHES, RANK, RANKS, Workers, together
from minimoe.training.progress import Progress

SAVE_EVERY = 20         # steps between two writings of last/
EVALUATE_EVERY = 100    # steps between two looks at the dev tasks, beside those at every save
SHOWN = 3               # completions shown with them
INIT_STREAM = 0         # of the seed: the initial weights; the batches have another

# What a run does unless told otherwise, by preset; all of it is saved in run.json
DEFAULTS: dict[str, dict[str, Any]] = {
    "full": dict(steps=400, save_at=(85, 100, 200, 400), batch_size=32, sequence_length=128, learning_rate=3e-4),
    "nano": dict(steps=300, save_at=(100, 200, 300), batch_size=16, sequence_length=128, learning_rate=4e-3),
    "micro": dict(steps=20, save_at=(20,), batch_size=4, sequence_length=40, learning_rate=4e-3),
}
COMMON = dict(weight_decay=0.1, seed=0)


def train(settings: dict[str, Any], out: Path, threads: int, resume: bool) -> bool:
    """Train as `settings` say, from the start or from `out`/last; return whether it came to its end."""
    preset, steps, seed = settings["preset"], settings["steps"], settings["seed"]
    length = settings["sequence_length"]
    if resume:
        model = MiniMoE.from_pretrained(out / "last")
        if model.config != PRESETS[preset]:
            raise InputError(f"{out / 'last'} holds a model of other sizes than the preset {preset} of its run")
    else:
        model = MiniMoE(PRESETS[preset], np.random.default_rng([seed, INIT_STREAM]))
    optimizer = AdamW(dict(model.named_parameters()), settings["learning_rate"], weight_decay=settings["weight_decay"])
    if resume:
        load_moments(out / "last", optimizer)
        if load_run(out / "last")["step"] != optimizer.t:
            raise InputError(f"{out / 'last' / RUN} is damaged: a step of pretraining is an update, and it says otherwise")
    done = optimizer.t

    def save(step: int) -> None:
        if RANK == 0:
            save_training(out / "last", model, optimizer, step, {"settings": settings})

    if not resume:
        save(0)
    counts = model.parameter_counts()
    dev = fixed_tasks("dev", DEV_TASKS)
    with (
        Workers(threads, model.zero_grads) as workers,
        Progress(out / "metrics.jsonl", steps, start=done, shown=("loss", "gradient_norm"), quiet=RANK > 0) as progress,
        until_interrupt() as stop,
    ):
        progress.message(
            f"nothing is left to do after step {done}" if done >= steps else
            f"{preset}: {counts['total']:,} parameters, {counts['active']:,} active for a token; "
            f"steps {done + 1} to {steps} of {settings['batch_size']} x {length} tokens, {threads} threads; writing {out}"
        )
        for step in range(done + 1, steps + 1):
            ids, _ = batch(seed, step, settings["batch_size"], length + 1)
            grads, metrics = pretraining_gradients(model, ids, workers)
            norm, scale = clip(optimizer.parameters, grads, CLIP)
            optimizer.step(grads, scale, run=workers.map)
            metrics |= {"gradient_norm": norm, "learning_rate": settings["learning_rate"]}

            with progress.paused():
                saves = step in settings["save_at"]
                if saves or step % EVALUATE_EVERY == 0 or step == steps:
                    attempts = greedy(model, dev)
                    metrics["dev"] = solved_by_family(attempts)
                    progress.message(f"step {step}: {tell(attempts)}")
            progress.update(step, step * settings["batch_size"] * length, **metrics)
            with progress.paused():
                if saves and RANK == 0:
                    model.save_pretrained(out / f"step-{step:04d}")
                stops = workers.any(stop.requested) and step < steps      # asked once: what is promised is saved
                if step % SAVE_EVERY == 0 or step == steps or stops:
                    save(step)
            if stops:
                progress.message(f"stopped after step {step}; to go on: python -m minimoe.pretrain --resume --out {out}")
                return False
    return True


def tell(attempts: list[Attempt]) -> str:
    """Return a few of the completions, and how many tasks were solved."""
    families = solved_by_family(attempts)
    lines = [f"{sum(families.values())} of {len(attempts)} dev tasks solved: "]
    lines[0] += ", ".join(f"{family} {solved}" for family, solved in families.items())
    for attempt in attempts[:: len(attempts) // SHOWN][:SHOWN]:
        lines.append(f"  {'solved' if attempt.solved else 'wrong '} {attempt.task.name}: {attempt.completion.strip()!r}")
    return "\n".join(lines)


def table(metrics: Path) -> str:
    """Return the dev results in metrics.jsonl as a table, a line for each time the model was asked."""
    records = [json.loads(line) for line in metrics.read_text(encoding="utf-8").split("\n") if line]
    records = [record for record in records if isinstance(record, dict) and is_like(record.get("loss"), 0.0)]
    records = [record for record in records if is_like(record.get("dev"), {"": 0}) and record["dev"].keys() == FAMILIES.keys()]
    if not records:
        return f"no dev results yet; they come with every --save-at, and every {EVALUATE_EVERY} steps"
    families = list(records[0]["dev"])
    lines = ["  ".join([" step", "  loss", "solved", *families])]
    for record in records:
        solved = [f"{record['dev'][family]:>{len(family)}}" for family in families]
        total = sum(record["dev"].values())
        lines.append("  ".join([f"{record['step']:5}", f"{record['loss']:6.3f}", f"{total:>6}", *solved]))
    lines.append(f"(solved: of {DEV_TASKS} dev tasks a family, {DEV_TASKS * len(families)} in all)")
    return "\n".join(lines)


def settings_of(args: Any) -> dict[str, Any]:
    """Return the settings of the run that the command line asks for."""
    defaults = DEFAULTS[args.preset or "full"] | COMMON | {"preset": "full"}
    given = {name: value for name, value in vars(args).items() if name in defaults and value is not None}
    if args.resume:
        settings = resume_settings(args.out, defaults, given, free=("steps", "save_at", "learning_rate"), end="steps")
    else:
        settings = begin_settings(args.out, defaults, given)
    if settings["preset"] not in PRESETS:
        raise InputError(f"the run in {args.out} has the preset {settings['preset']!r}, which there is not")
    if max(given.get("save_at", ()), default=0) > settings["steps"]:      # default ones beyond it are never reached
        raise InputError(f"--save-at {max(given['save_at'])} is beyond the last step, {settings['steps']}")
    context = PRESETS[settings["preset"]].context
    if settings["sequence_length"] > context:
        raise InputError(f"--sequence-length {settings['sequence_length']} exceeds the model's context, {context}")
    parts = min(MICROBATCHES, settings["batch_size"])
    if RANKS > parts:
        raise InputError(f"mpirun -n {RANKS}: a batch has {parts} parts to share; start no more processes")
    tokens = settings["batch_size"] * settings["sequence_length"]
    if tokens > MAX_TOKENS:
        raise InputError(f"--batch-size {settings['batch_size']}: {tokens:,} tokens a step are more than {MAX_TOKENS:,}")
    return settings


def main() -> int:
    parser = Parser(description=__doc__)
    full, nano = DEFAULTS["full"], DEFAULTS["nano"]

    def by_preset(name: str) -> str:
        values = [",".join(map(str, d[name])) if name == "save_at" else d[name] for d in (full, nano)]
        return f"(default: {values[0]}; nano: {values[1]})"

    option = parser.add_argument
    option("--preset", choices=list(DEFAULTS), help="sizes of the model (default: full)")
    option("--steps", type=positive_int, help=f"steps to train for {by_preset('steps')}")
    option("--batch-size", type=positive_int, help=f"rows of a batch {by_preset('batch_size')}")
    option("--sequence-length", type=positive_int, help="tokens of a row (default: 128)")
    option("--learning-rate", type=positive_float, help=f"constant; --resume may change it {by_preset('learning_rate')}")
    option("--weight-decay", type=non_negative_float, help="of matrices, a step and learning rate (default: 0.1)")
    option("--seed", type=non_negative_int, help="of the initial weights and the batches (default: 0)")
    option("--out", type=Path, default=Path("checkpoints/pretrain"), help="folder to write")
    option("--save-at", type=steps_list, metavar="STEPS", help=f"steps to keep a checkpoint of {by_preset('save_at')}")
    option("--resume", action="store_true", help="go on with the run in --out")
    option("--threads", type=positive_int, default=min(4, os.cpu_count() or 1), help="changes speed alone")
    args = parser.parse_args()
    warnings.simplefilter("ignore", RuntimeWarning)                       # `clip` tells of numbers gone wrong, in one line
    settings = settings_of(args)
    with together(), alone(args.out) if RANK == 0 else nullcontext():     # together: all have looked at --out by now
        finished = train(settings, args.out, args.threads, args.resume)
    if RANK == 0:
        print(table(args.out / "metrics.jsonl"))
    return 0 if finished else 130


if __name__ == "__main__":
    run(main)
