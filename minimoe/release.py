"""Write a checkpoint as it is handed out: in float16, half the size.

    python -m minimoe.release checkpoints/pretrain/step-0085 checkpoints/released/pretrain-0085
    python -m minimoe.release checkpoints/rloo/last checkpoints/released/rloo --base checkpoints/released/pretrain-0085

With --base, a release that lies beside OUT, only the tensors that differ from the base's are written, and config.json says
where the rest is. Either can be read like any checkpoint, and is then computed with in float32.
"""

from pathlib import Path
from typing import Any

from minimoe.cli import Parser, run, settle

if __name__ == "__main__":
    settle()    # before NumPy is imported

import numpy as np

from minimoe.errors import InputError
from minimoe.files import read_json, recover, sha256, write_folder
from minimoe.model import BASE, BASE_SHA256, CONFIG, WEIGHTS, MiniMoE, read_config


def release(checkpoint: Path, out: Path, base: Path | None = None) -> dict[str, np.ndarray]:
    """Write `checkpoint` in float16 to `out`, without what `base` has as well; return the tensors written.

    Raises `InputError` if `out` exists, for a number too large for float16, and for a base of another size or not beside `out`.
    """
    recover(out)
    if out.exists():
        raise InputError(f"{out} is there already, and nothing is written over it; give a new folder")
    model = MiniMoE.from_pretrained(checkpoint)
    with np.errstate(over="ignore"):                                      # too large: infinity, refused below
        tensors = {name: parameter.data.astype(np.float16) for name, parameter in model.named_parameters()}
    for name, tensor in tensors.items():
        if not np.isfinite(tensor).all():
            raise InputError(f"{checkpoint}: tensor {name!r} has a number too large for float16")
    config: dict[str, Any] = model.config.to_dict()
    if base is not None:
        whole = MiniMoE.from_pretrained(base)
        config |= {BASE: f"../{base.resolve().name}", BASE_SHA256: sha256(base / WEIGHTS)}
        if read_config(out, config)[1] != base.resolve():
            raise InputError(f"{base} does not lie beside {out}; copy it there")
        if whole.config != model.config or read_config(base, read_json(base / CONFIG))[1]:
            raise InputError(f"{base} is not a base for {out}: a model of other sizes, or one with a base of its own")
        old = {name: parameter.data for name, parameter in whole.named_parameters()}
        if not all(np.array_equal(array, array.astype(np.float16)) for array in old.values()):
            raise InputError(f"{base} is not in float16; release it first, and from that what was trained")
        same = {name for name, array in old.items() if np.array_equal(tensors[name], array)}
        tensors = {name: tensor for name, tensor in tensors.items() if name not in same}
    write_folder(out, {CONFIG: config, WEIGHTS: tensors})
    return tensors


def main() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument("checkpoint", metavar="CHECKPOINT", type=Path, help="a folder with model.safetensors and config.json")
    parser.add_argument("out", metavar="OUT", type=Path, help="the folder to write")
    parser.add_argument("--base", type=Path, help="a release beside OUT that has the tensors which did not change")
    args = parser.parse_args()
    tensors = release(args.checkpoint, args.out, args.base)
    size = (args.out / WEIGHTS).stat().st_size / 1e6
    print(f"{args.out}: {len(tensors)} tensors, {sum(t.size for t in tensors.values()):,} numbers in float16, {size:.1f} MB")


if __name__ == "__main__":
    run(main)
