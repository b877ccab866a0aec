"""Improve a pretrained model by reinforcement learning: RLOO, whose reward is what becomes of the code it writes.

    python -m minimoe.rloo                          from checkpoints/pretrain/step-0085, 96 groups of 64 samples
    python -m minimoe.rloo --replay 0               the policy gradient alone, to see what it forgets
    python -m minimoe.rloo --resume                 go on after Ctrl-C, or after a crash

A step draws a task and 64 completions of its prompt, judges each by the task's hidden cases (1 if all pass, 0 if not, -0.1
for what is no valid function), and takes one step up the gradient of the expected reward: each sample's log-probability is
weighted by its reward minus the mean of the others'. Beside it stands cross entropy on replayed examples of the other
families, so that what no reward speaks of is not forgotten; of what the reward is about, no example is shown.

Left out, on purpose: a value network (the other samples are the baseline), ratios and their clipping (each sample is used
once, by the policy that drew it), a KL penalty (replay does its work; the KL is measured), division by the group's standard
deviation or by a sample's length (the gradient would be of something else than the expected reward).

Writes into --out: metrics.jsonl, a line for every step; rollouts.jsonl, every distinct completion with its count and
verdict; last/, from which --resume goes on, and a folder for each step of --save-at.
"""

import hashlib
import json
import os
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from minimoe.cli import (
    Parser, finite_float, non_negative_float, non_negative_int, positive_float, positive_int, run, settle,
    steps_list, until_interrupt,
)

if __name__ == "__main__":
    settle()    # before NumPy is imported

import numpy as np

from minimoe.coding.data import pack
from minimoe.coding.scoring import DEV_TASKS, greedy, judge, solved_by_family
from minimoe.coding.tasks import FAMILIES, TRAINED, UNTRAINED, Task, fixed_tasks, sample_task
from minimoe.coding.verifier import REWARDS, Verdict
from minimoe.errors import InputError
from minimoe.files import alone, first_there, recover
from minimoe.generate import generate
from minimoe.layers.layer import Grads
from minimoe.model import MiniMoE
from minimoe.tokenizer import BOS, EOS, PAD, completion_text, encode
from minimoe.training.checkpoint import RUN, begin_settings, is_like, load_moments, load_run, resume_settings, save_training
from minimoe.training.losses import leave_one_out, log_softmax
from minimoe.training.objective import sampled_gradients
from minimoe.training.optim import CLIP, AdamW, clip
from minimoe.training.parallel import RANKS, Workers
from minimoe.training.progress import Progress, truncate

SAVE_EVERY = 12         # steps between two writings of last/
EVALUATE_EVERY = 24     # steps between two looks at the dev tasks, beside those before the first step and after the last
REPLAY_LENGTH = 129     # tokens of a replayed row
SHOWN = ("reward", "passed", "invalid", "entropy", "kl", "replay_loss")
MOST = 2**12            # samples of a group, rows of a replay batch
LARGEST = 1e6           # weight of a loss, size of a reward
TASK_STREAM, SAMPLE_STREAM, REPLAY_STREAM = 2, 3, 4    # of the seed; pretraining has 0 and 1

DEFAULTS: dict[str, Any] = dict(
    groups=96, save_at=(24, 48, 72, 96), base="checkpoints/pretrain/step-0085", policy=1.0, group_size=64, temperature=0.35,
    learning_rate=2e-4, families=TRAINED, train_scope="last-block", replay=1.0, replay_families=UNTRAINED, replay_batch=8,
    invalid_reward=REWARDS["invalid"], max_new_tokens=32, seed=0,
)


BASES = DEFAULTS["base"], "checkpoints/released/pretrain-0085"
SCOPES = "last-block", "all"


class Group(NamedTuple):
    """The samples of one prompt. Equal ones are one row: R distinct completions of G samples."""

    task: Task
    completions: list[tuple[int, ...]]    # R, ids; the last is EOS if it was sampled
    counts: np.ndarray                    # (R,)
    verdicts: list[Verdict]               # R
    rewards: np.ndarray                   # (R,)
    advantages: np.ndarray                # (R,) of one sample of the row


def sample_group(model: MiniMoE, task: Task, settings: dict[str, Any], step: int) -> tuple[Group, dict[str, float]]:
    """Draw a group, judge it, and return it with the seconds that each took."""
    begin = time.perf_counter()
    prompts = [[BOS] + encode(task.prompt)] * settings["group_size"]
    seed = [settings["seed"], SAMPLE_STREAM, step]
    samples = generate(model, prompts, settings["max_new_tokens"], settings["temperature"], seed)
    sampled = time.perf_counter()
    if not all(samples):
        raise InputError(f"the model's context, {model.config.context}, leaves no room after a prompt")
    counted = Counter(map(tuple, samples))
    completions, counts = list(counted), np.array(list(counted.values()))
    verdicts = [judge(task, ids) for ids in completions]
    price = REWARDS | {"invalid": settings["invalid_reward"]}
    rewards = np.array([price[verdict.status] for verdict in verdicts])
    # one advantage a sample; equal samples have equal ones, so the first of each row stands for it
    each = leave_one_out(rewards.repeat(counts))
    advantages = each[np.cumsum(counts) - counts]
    if len(set(rewards)) == 1:
        advantages[:] = 0                                                 # exactly, whatever rounding says
    seconds = {"sampling_seconds": sampled - begin, "verifying_seconds": time.perf_counter() - sampled}
    return Group(task, completions, counts, verdicts, rewards, advantages), seconds


def padded(completions: list[tuple[int, ...]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the completions as ids (R,T), padded on the right, and which of them were sampled (R,T)."""
    ids = np.full((len(completions), max(map(len, completions))), PAD)
    sampled = np.zeros(ids.shape, bool)
    for row, completion in enumerate(completions):
        ids[row, : len(completion)], sampled[row, : len(completion)] = completion, True
    return ids, sampled


def policy_rows(group: Group) -> tuple[np.ndarray, np.ndarray]:
    """Return ids (R,T+1), padded on the right, and for ids[:, 1:] their weights (R,T) in the loss.

    The loss is -mean over samples of advantage * log p(sample), so a row weighs its count * its advantage / G. A sampled EOS
    is part of the sample; the prompt and the padding are not.
    """
    ids, sampled = padded(group.completions)
    prompt = np.tile([BOS] + encode(group.task.prompt), (len(ids), 1))    # (R, tokens of the prompt)
    of_row = group.counts * group.advantages / group.counts.sum()         # (R,)
    weights = np.concatenate([np.zeros(prompt.shape), sampled * of_row[:, None]], axis=1)
    return np.concatenate([prompt, ids], axis=1), weights[:, 1:]


def score(model: MiniMoE, group: Group, temperature: float) -> tuple[np.ndarray, np.ndarray]:
    """Return log p of each sampled token, and the entropy in nats of what it was drawn from: (R,T), 0 at the padding."""
    logits, state = model.step(np.array([[BOS] + encode(group.task.prompt)]))    # read once, whatever R is
    ids, sampled = padded(group.completions)
    R, T = ids.shape
    logits = logits[:, -1:].repeat(R, axis=0)                             # (R,1,V) of the first token
    if T > 1:
        rest, _ = model.step(ids[:, :-1], [part.take([0] * R) for part in state])
        logits = np.concatenate([logits, rest], axis=1)                   # (R,T,V)
    log_p = log_softmax(logits / temperature)
    entropy = -(np.exp(log_p) * log_p).sum(axis=-1)
    return np.take_along_axis(log_p, ids[..., None], axis=-1)[..., 0] * sampled, entropy * sampled


def describe(group: Group, log_p: np.ndarray, entropy: np.ndarray, log_base: np.ndarray) -> dict[str, float]:
    """Return what a step writes down about its samples; `log_p` and `entropy` are the policy's `score`, `log_base` the base's.

    `kl` estimates the divergence from the starting policy by the mean over samples of log p(sample) - log p_start(sample);
    `entropy` is the mean over sampled tokens.
    """
    counts, G = group.counts, group.counts.sum()                          # (R,)
    tokens = counts @ [len(ids) for ids in group.completions]
    status = np.array([verdict.status for verdict in group.verdicts])
    truncated = np.array([EOS not in ids for ids in group.completions])
    return {
        "reward": float(counts @ group.rewards / G),
        **{name: float(counts[status == name].sum() / G) for name in REWARDS},
        "truncated": float(counts[truncated].sum() / G),
        "distinct": len(group.completions),
        "zero_spread": int(not group.advantages.any()),
        "advantage_largest": float(np.abs(group.advantages).max()),
        "entropy": float(counts @ entropy.sum(axis=1) / tokens),
        "kl": float(counts @ (log_p - log_base).sum(axis=1) / G),
    }


def trainable(scope: str, model: MiniMoE) -> Any:
    """Return which names train: all, or those of the last block, the final norm and the tied embedding."""
    last = f"blocks.{len(model.blocks) - 1}."
    return lambda name: scope == "all" or name.startswith((last, "final_norm.", "embedding."))


def train(settings: dict[str, Any], out: Path, threads: int, resume: bool) -> tuple[bool, dict[str, Any]]:
    """Train as `settings` say; return whether it came to its end, and what of the dev tasks was solved, by step."""
    groups, seed, temperature = settings["groups"], settings["seed"], settings["temperature"]
    base = MiniMoE.from_pretrained(settings["base"])
    model = MiniMoE.from_pretrained(out / "last" if resume else settings["base"])
    learns = trainable(settings["train_scope"], model)
    parameters = {name: parameter for name, parameter in model.named_parameters() if learns(name)}
    optimizer = AdamW(parameters, settings["learning_rate"], weight_decay=0.0)
    dev = fixed_tasks("dev", DEV_TASKS)
    if resume:
        load_moments(out / "last", optimizer)
        state = load_run(out / "last")
        if state.get("base_sha256") != digest(base) or model.config != base.config:
            raise InputError(f"{settings['base']} is not the model from which the run in {out} began; name that one by --base")
        dev_results = state.get("dev")
        if not (is_like(state.get("tokens"), 0) and dev_results and is_like(dev_results, {"": {"": 0}})
                and all(solved.keys() == FAMILIES.keys() for solved in dev_results.values())):
            raise InputError(f"{out / 'last' / RUN} is damaged: its tokens and dev results are not those of a run")
    else:
        state = {"base_sha256": digest(base), "tokens": 0, "dev": {"0": solved_by_family(greedy(model, dev))}}
    state["settings"] = settings
    done = state.get("step", 0)

    def save(step: int) -> None:
        save_training(out / "last", model, optimizer, step, state)

    if not resume:
        save(0)
    rollouts = out / "rollouts.jsonl"
    truncate(rollouts, done)
    with (
        Workers(threads, lambda: model.zero_grads(learns)) as workers,
        Workers(threads, lambda: model.zero_grads(learns)) as replayers,
        Progress(out / "metrics.jsonl", groups, start=done, unit="group", shown=SHOWN) as progress,
        open(rollouts, "a", encoding="utf-8", newline="\n") as log,
        until_interrupt() as stop,
    ):
        progress.message(
            f"nothing is left to do after group {done}" if done >= groups else
            f"{settings['base']}: {sum(p.data.size for p in parameters.values()):,} parameters train; groups {done + 1} to "
            f"{groups} of {settings['group_size']} samples, {threads} threads; writing {out}"
        )
        for step in range(done + 1, groups + 1):
            task = sample_task("rl", np.random.default_rng([seed, TASK_STREAM, step]), settings["families"])
            group, seconds = sample_group(model, task, settings, step)
            begin = time.perf_counter()
            total: Grads = {}
            (log_p, entropy), (log_base, _) = workers.map(lambda one: score(one, group, temperature), (model, base))
            metrics: dict[str, Any] = describe(group, log_p, entropy, log_base)
            metrics["gradient_norm"] = 0.0
            if group.advantages.any() and settings["policy"]:
                ids, weights = policy_rows(group)
                grads, _ = sampled_gradients(model, ids, weights * settings["policy"], workers, temperature)
                metrics["gradient_norm"] = add_clipped(total, grads, parameters)
            if settings["replay"]:
                rng = np.random.default_rng([seed, REPLAY_STREAM, step])
                length = min(REPLAY_LENGTH, base.config.context + 1)      # a row's last token is only a target
                ids, solution = pack(rng, settings["replay_batch"], length, "replay", settings["replay_families"])
                learned = solution[:, 1:] / solution[:, 1:].sum()         # the mean over the tokens of solutions
                grads, loss = sampled_gradients(model, ids, learned * settings["replay"], replayers)
                metrics["replay_loss"] = loss / settings["replay"]
                metrics["replay_gradient_norm"] = add_clipped(total, grads, parameters)
            if total:                                                     # else nothing was learned: no step, no momentum
                optimizer.step(total, run=workers.map)
            metrics |= {**seconds, "updating_seconds": time.perf_counter() - begin, "family": task.family}

            with progress.paused():
                for completion, count, verdict in zip(group.completions, group.counts.tolist(), group.verdicts):
                    line = {"step": step, "task": task.name, "completion": completion_text(completion), "count": count}
                    log.write(json.dumps(line | {"status": verdict.status, "reason": verdict.reason}) + "\n")
                log.flush()
                if step % EVALUATE_EVERY == 0 or step == groups or step in settings["save_at"]:
                    state["dev"][str(step)] = metrics["dev"] = solved_by_family(greedy(model, dev))
                    progress.message(f"group {step}: {sum(metrics['dev'].values())} of {len(dev)} dev tasks solved")
            state["tokens"] += int(sum(len(ids) * n for ids, n in zip(group.completions, group.counts)))
            progress.update(step, state["tokens"], **metrics)
            with progress.paused():
                if step in settings["save_at"]:
                    model.save_pretrained(out / f"step-{step:04d}")
                stops = stop.requested and step < groups                  # asked once: what is promised is saved
                if step % SAVE_EVERY == 0 or step == groups or stops:
                    save(step)
            if stops:
                progress.message(f"stopped after group {step}; to go on: python -m minimoe.rloo --resume --out {out}")
                return False, state["dev"]
    return True, state["dev"]


def digest(model: MiniMoE) -> str:
    """Return what tells a model from others: the SHA-256 of its sizes and weights."""
    sha = hashlib.sha256(json.dumps(model.config.to_dict()).encode())
    for name, parameter in model.named_parameters():
        sha.update(name.encode())
        sha.update(parameter.data.tobytes())
    return sha.hexdigest()


def add_clipped(total: Grads, grads: Grads, parameters: dict[str, Any]) -> float:
    """Add the gradient, shortened to CLIP, into `total`, and return its length before.

    Policy and replay are clipped each by itself: the policy's gradient is often tens of times the longer one, and clipped
    together it would silence the replay.
    """
    norm, scale = clip(parameters, grads, CLIP)
    for parameter, g in grads.items():
        total[parameter] = total.get(parameter, 0) + scale * g
    return norm


def table(dev: dict[str, dict[str, int]]) -> str:
    """Return the dev results, by step, as a table."""
    families = list(next(iter(dev.values())))
    lines = ["  ".join(["group", "solved", *families])]
    for step, solved in dev.items():
        row = [f"{step:>5}", f"{sum(solved.values()):>6}", *(f"{solved[name]:>{len(name)}}" for name in families)]
        lines.append("  ".join(row))
    return "\n".join(lines)


def names_list(text: str) -> list[str]:
    """An argument type: "increment,double" as names of families."""
    return text.split(",")


def settings_of(args: Any) -> dict[str, Any]:
    """Return the settings of the run that the command line asks for."""
    given = {name: value for name, value in vars(args).items() if name in DEFAULTS and value is not None}
    if args.base is not None or not args.resume:
        base = first_there(BASES) if args.base is None else args.base
        given["base"] = str(Path(base).absolute())                        # so that --resume works from any folder
    if args.resume:
        settings = resume_settings(args.out, DEFAULTS, given, free=("groups", "save_at", "learning_rate", "base"), end="groups")
    else:
        settings = begin_settings(args.out, DEFAULTS, given)
    if max(given.get("save_at", ()), default=0) > settings["groups"]:
        raise InputError(f"--save-at {max(given['save_at'])} is beyond the last group, {settings['groups']}")
    for option in "families", "replay_families":
        for family in settings[option] or [""]:
            if family not in FAMILIES:
                name = option.replace("_", "-")
                raise InputError(f"--{name}: there is no {family!r}; choose from {', '.join(FAMILIES)}")
    if settings["train_scope"] not in SCOPES:
        raise InputError(f"--train-scope: there is no {settings['train_scope']!r}; choose from {', '.join(SCOPES)}")
    if settings["group_size"] < 2:
        raise InputError("--group-size 1: a sample needs others to be compared with; give 2 or more")
    for name, least, most in [
        ("group_size", 2, MOST), ("replay_batch", 1, MOST), ("max_new_tokens", 1, MOST), ("temperature", 1e-6, LARGEST),
        ("policy", 0, LARGEST), ("replay", 0, LARGEST), ("invalid_reward", -LARGEST, LARGEST),
    ]:
        if not least <= settings[name] <= most:
            raise InputError(f"--{name.replace('_', '-')} {settings[name]} is out of range; give {least:g} to {most:g}")
    if not settings["policy"] and not settings["replay"]:
        raise InputError("--policy 0 and --replay 0 leave nothing to learn from; give one of them")
    recover(settings["base"])
    if not Path(settings["base"]).exists():
        raise InputError(f"{settings['base']} does not exist; run python -m minimoe.pretrain first, or give another --base")
    if RANKS > 1:
        raise InputError("minimoe.rloo trains in one process; start it without mpirun")
    return settings


def main() -> int:
    parser = Parser(description=__doc__)
    d = DEFAULTS
    option = parser.add_argument
    option("--base", help=f"checkpoint to start from (default: the first there is of {' and '.join(BASES)})")
    option("--out", type=Path, default=Path("checkpoints/rloo"), help="folder to write")
    option("--policy", type=non_negative_float, help=f"weight of the policy's loss; 0: replay alone (default: {d['policy']})")
    option("--groups", type=positive_int, help=f"groups, a step each (default: {d['groups']})")
    option("--group-size", type=positive_int, help=f"samples of a group (default: {d['group_size']})")
    option("--temperature", type=positive_float, help=f"of the samples, and of their score (default: {d['temperature']})")
    option("--learning-rate", type=positive_float, help=f"constant (default: {d['learning_rate']})")
    option("--families", type=names_list, metavar="NAMES", help=f"what the policy trains on (default: {','.join(d['families'])})")
    option("--train-scope", choices=SCOPES, help=f"what trains (default: {d['train_scope']})")
    option("--replay", type=non_negative_float, help=f"weight of the replay's loss; 0: none (default: {d['replay']})")
    option("--replay-families", type=names_list, metavar="NAMES",
           help=f"what to replay (default: {','.join(d['replay_families'])})")
    option("--replay-batch", type=positive_int, help=f"rows of a replay batch (default: {d['replay_batch']})")
    option("--invalid-reward", type=finite_float, help=f"of what is no valid function (default: {d['invalid_reward']})")
    option("--max-new-tokens", type=positive_int, help=f"longest sample (default: {d['max_new_tokens']})")
    option("--seed", type=non_negative_int, help=f"of tasks, samples and replay (default: {d['seed']})")
    option("--save-at", type=steps_list, metavar="GROUPS", help="groups to keep a checkpoint of (default: 24,48,72,96)")
    option("--resume", action="store_true", help="go on with the run in --out")
    option("--threads", type=positive_int, default=min(4, os.cpu_count() or 1), help="changes speed alone")
    args = parser.parse_args()
    warnings.simplefilter("ignore", RuntimeWarning)                       # `clip` tells of numbers gone wrong, in one line
    settings = settings_of(args)
    with alone(args.out):
        finished, dev = train(settings, args.out, args.threads, args.resume)
    print(table(dev))
    return 0 if finished else 130


if __name__ == "__main__":
    run(main)
