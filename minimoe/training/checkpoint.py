"""A training checkpoint: the model's files, with the optimizer's moments and the state of the run beside them."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from minimoe import files
from minimoe.errors import InputError
from minimoe.model import MiniMoE
from minimoe.training.optim import AdamW

MOMENTS, RUN = "optimizer.safetensors", "run.json"


def save_training(folder: Path, model: MiniMoE, optimizer: AdamW, step: int, run: dict[str, Any]) -> None:
    """Write model, moments, the steps done and `run` (what JSON can hold), all or nothing; `from_pretrained` reads it too.

    Raises `InputError` instead of saving weights that are not numbers over good ones.
    """
    for name, parameter in model.named_parameters():
        if not np.isfinite(parameter.data).all():
            raise InputError(f"{name} holds NaN or infinity; {folder} was left as it was. Try a lower learning rate")
    moments = {f"m.{name}": m for name, m in optimizer.m.items()} | {f"v.{name}": v for name, v in optimizer.v.items()}
    files.write_folder(folder, {**model.checkpoint_files(), MOMENTS: moments, RUN: {**run, "step": step, "updates": optimizer.t}})


def load_run(folder: Path) -> dict[str, Any]:
    """Return the `run` that was saved. Raises `InputError` where there is none."""
    files.recover(folder)
    run = files.read_json(folder / RUN)
    if not (isinstance(run.get("step"), int) and isinstance(run.get("updates"), int)):
        raise InputError(f"{folder / RUN} does not say how many steps were taken; it is not of a run of training")
    return run


def load_moments(folder: Path, optimizer: AdamW) -> None:
    """Give the optimizer the moments and the number of updates it was saved with. Raises `InputError`."""
    names = [f"{kind}.{name}" for kind in "mv" for name in optimizer.m]
    shapes = {name: optimizer.m[name[2:]].shape for name in names}
    dtype = next(iter(optimizer.m.values())).dtype
    tensors = files.read_tensors(folder / MOMENTS, shapes, dtype)
    optimizer.m = {name: tensors[f"m.{name}"] for name in optimizer.m}
    optimizer.v = {name: tensors[f"v.{name}"] for name in optimizer.v}
    optimizer.t = load_run(folder)["updates"]


def begin_settings(out: Path, defaults: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a new run in `out`. Raises `InputError` if something is there: a run is not overwritten."""
    if out.exists() and (not out.is_dir() or any(not path.name.startswith(".") for path in out.iterdir())):
        raise InputError(f"{out} is not empty; go on with the run in it by --resume, or choose another --out")
    return defaults | given


def resume_settings(
    out: Path, defaults: dict[str, Any], given: dict[str, Any], free: Collection[str]
) -> dict[str, Any]:
    """Return the settings of the run in `out`, of which only the `free` ones may be given anew.

    The first of `free` says where the run ends. Raises `InputError` if there is no run, or one of another command, whose
    `defaults` have other names, or one that contradicts what is given.
    """
    if not out.is_dir():
        raise InputError(f"there is no run in {out}; leave out --resume to begin one")
    run = load_run(out / "last")
    settings, done, end = run.get("settings"), run["step"], next(iter(free))
    if not isinstance(settings, dict) or settings.keys() != defaults.keys():
        raise InputError(f"{out / 'last' / RUN} is not of a run that this command began; choose another --out")
    for name, value in given.items():
        if name not in free and value != settings[name]:
            option = "--" + name.replace("_", "-")
            raise InputError(f"{option} {value}: the run in {out} was begun with {settings[name]}; leave {option} out")
    if given.get(end, done) < done:
        raise InputError(f"--{end} {given[end]}: the run in {out} is at {done} already")
    return settings | given
