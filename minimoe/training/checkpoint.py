"""A training checkpoint: the model's files, with the optimizer's moments and the state of the run beside them."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from minimoe import files
from minimoe.errors import InputError
from minimoe.model import MiniMoE
from minimoe.training.optim import AdamW

MOMENTS, RUN = "optimizer.safetensors", "run.json"


def save_training(folder: Path, model: MiniMoE, optimizer: AdamW, step: int, run: dict[str, Any]) -> None:
    """Write model, moments, the steps done and `run` (what JSON can hold), all or nothing; `from_pretrained` reads it too.

    Raises `InputError` instead of saving weights that are not numbers over good ones.
    """
    moments = {f"m.{name}": m for name, m in optimizer.m.items()} | {f"v.{name}": v for name, v in optimizer.v.items()}
    files.write_folder(folder, {**model.checkpoint_files(), MOMENTS: moments, RUN: {**run, "step": step, "updates": optimizer.t}})


def load_run(folder: Path) -> dict[str, Any]:
    """Return the `run` that was saved. Raises `InputError` where there is none."""
    files.recover(folder)
    run = files.read_json(folder / RUN)
    for name in "step", "updates":
        if type(run.get(name)) is not int or not 0 <= run[name] < 2**32:
            raise InputError(f"{folder / RUN} says {name}: {run.get(name)!r}, which no run of training does")
    if run["updates"] > run["step"]:
        raise InputError(f"{folder / RUN} says more updates, {run['updates']}, than steps, {run['step']}")
    return run


def load_moments(folder: Path, optimizer: AdamW) -> None:
    """Give the optimizer the moments and the number of updates it was saved with. Raises `InputError`."""
    names = [f"{kind}.{name}" for kind in "mv" for name in optimizer.m]
    shapes = {name: optimizer.m[name[2:]].shape for name in names}
    dtype = next(iter(optimizer.m.values())).dtype
    tensors = files.read_tensors(folder / MOMENTS, shapes, dtype)
    for name in optimizer.v:
        if (tensors[f"v.{name}"] < 0).any():
            problem = f"tensor 'v.{name}', a mean of squares, is negative"
            raise InputError(f"{folder / MOMENTS}: {problem}; use an earlier checkpoint")
    optimizer.m = {name: tensors[f"m.{name}"] for name in optimizer.m}
    optimizer.v = {name: tensors[f"v.{name}"] for name in optimizer.v}
    optimizer.t = load_run(folder)["updates"]


def begin_settings(out: Path, defaults: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a new run in `out`. Raises `InputError` if something is there: a run is not overwritten."""
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; choose another --out")
    if out.exists() and any(not path.name.startswith(".") for path in out.iterdir()):
        raise InputError(f"{out} is not empty; go on with the run in it by --resume, or choose another --out")
    return defaults | given


def resume_settings(
    out: Path, defaults: dict[str, Any], given: dict[str, Any], free: Collection[str], end: str
) -> dict[str, Any]:
    """Return the settings of the run in `out`, of which only the `free` ones may be given anew.

    `end` names the one that says after which step the run ends. Raises `InputError` if there is no run, or one of another
    command, whose `defaults` are unlike, or one that contradicts what is given, or if a save would delete what no run wrote.
    """
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; a run is a folder")
    files.recover(out / "last")
    if not (out / "last").is_dir():
        raise InputError(f"there is no run in {out}; leave out --resume to begin one")
    run = load_run(out / "last")
    settings, done = run.get("settings"), run["step"]
    if not (isinstance(settings, dict) and settings.keys() == defaults.keys()
            and all(is_like(settings[name], default) for name, default in defaults.items())):
        raise InputError(f"{out / 'last' / RUN} is not of a run that this command began; choose another --out")
    for name, value in given.items():
        if name not in free and value != settings[name]:
            option = "--" + name.replace("_", "-")
            raise InputError(f"{option} {value}: the run in {out} was begun with {settings[name]}; leave {option} out")
    if given.get(end, done) < done:
        raise InputError(f"--{end} {given[end]}: the run in {out} is at {done} already")
    settings |= given
    for name in ["last", *(f"step-{step:04d}" for step in settings["save_at"])]:
        files.refuse_strangers(out / name)                                # now, not after hours of work
    return settings


def is_like(value: Any, default: Any) -> bool:
    """Say whether a setting read from a file can be one whose default is `default`: of its kind, and negative or zero only if
    that may be: a count with a default above 0 is 1 or more."""
    if isinstance(default, (list, tuple)):
        return isinstance(value, list) and all(is_like(item, default[0]) for item in value)
    if isinstance(default, dict):
        return isinstance(value, dict) and all(is_like(item, *default.values()) for item in value.values())
    if isinstance(default, float):
        return type(value) in (int, float) and abs(value) < 2**1000 and (value >= 0 or default < 0)
    return type(value) is type(default) and (not isinstance(value, int) or value >= min(default, 1))
