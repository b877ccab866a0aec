"""A training checkpoint: the model's files, with the optimizer's moments and the state of the run beside them."""

from pathlib import Path
from typing import Any

from minimoe import files
from minimoe.model import MiniMoE
from minimoe.training.optim import AdamW

MOMENTS, RUN = "optimizer.safetensors", "run.json"


def save_training(folder: Path, model: MiniMoE, optimizer: AdamW, run: dict[str, Any]) -> None:
    """Write model, moments and `run` (what JSON can hold), all or nothing. `from_pretrained` can read the folder too."""
    moments = {f"m.{name}": m for name, m in optimizer.m.items()} | {f"v.{name}": v for name, v in optimizer.v.items()}
    files.write_folder(folder, {**model.checkpoint_files(), MOMENTS: moments, RUN: {"updates": optimizer.t, **run}})


def load_run(folder: Path) -> dict[str, Any]:
    """Return the `run` that was saved. Raises `InputError` where there is none."""
    files.recover(folder)
    return files.read_json(folder / RUN)


def load_moments(folder: Path, optimizer: AdamW) -> None:
    """Give the optimizer the moments and the number of updates it was saved with. Raises `InputError`."""
    names = [f"{kind}.{name}" for kind in "mv" for name in optimizer.m]
    shapes = {name: optimizer.m[name[2:]].shape for name in names}
    dtype = next(iter(optimizer.m.values())).dtype
    tensors = files.read_tensors(folder / MOMENTS, shapes, dtype)
    optimizer.m = {name: tensors[f"m.{name}"] for name in optimizer.m}
    optimizer.v = {name: tensors[f"v.{name}"] for name in optimizer.v}
    optimizer.t = load_run(folder)["updates"]
