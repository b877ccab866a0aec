"""Disks that fail or processes that die at the nth change to the disk.

    python -m tests.writes N minimoe.pretrain --steps 4 ...    the command, killed by SIGKILL in place of its Nth change
"""

import builtins
import errno
import io
import os
import runpy
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

try:
    import resource
except ImportError:    # Windows has none
    resource = None

from minimoe import files, pretrain, rloo
from minimoe.coding import scoring
from minimoe.model import MiniMoE
from minimoe.training.checkpoint import load_run
from tests.commands import bits, call, records

CALLS = "rename", "replace", "fsync", "mkdir", "unlink", "rmdir"
ERRORS = errno.ENOSPC, errno.EIO, errno.EACCES, errno.EROFS
OF_A_FILE = errno.ENOSPC, errno.EIO    # what an open file gives, which has no name any more
LEFTOVERS = {".last.tmp", ".last.old"}    # of a fault in the last deletion; the next save deletes them


@contextmanager
def changes(act: Callable[[int, Any], Any]) -> Iterator[SimpleNamespace]:
    """Within it, `act(n, what)` is called before the nth change to the disk; what: a path, or the number of an open file."""
    made = SimpleNamespace(count=0)

    def counted(function: Callable[..., Any], is_change: Callable[..., bool] = lambda *_, **__: True) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **keywords: Any) -> Any:
            if is_change(*arguments, **keywords):
                made.count += 1
                act(made.count, arguments[0])
            return function(*arguments, **keywords)

        return wrapper

    def to_write(file: Any, mode: str = "r", *_: Any, **__: Any) -> bool:
        return not isinstance(file, int) and set(mode) & set("wax+") != set()

    with mock.patch.multiple(os, **{name: counted(getattr(os, name)) for name in CALLS}), \
            mock.patch.object(files, "save_file", counted(files.save_file)), \
            mock.patch.object(io, "open", counted(io.open, to_write)), \
            mock.patch.object(builtins, "open", counted(builtins.open, to_write)):
        yield made


def writes(tally: Any, count: int = 2000, seed: int = 0) -> None:
    """Fill the disk, or let one change to it fail, at every place of a run: one line, and it goes on from a whole checkpoint."""
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(scoring, "MAX_NEW_TOKENS", 1), \
            mock.patch.multiple(pretrain, SAVE_EVERY=2, DEV_TASKS=1), \
            mock.patch.multiple(rloo, SAVE_EVERY=1, DEV_TASKS=1, REPLAY_LENGTH=80):
        base = Path(folder, "base")
        MiniMoE(pretrain.PRESETS["micro"], np.random.default_rng(seed)).save_pretrained(base)
        commands = {
            pretrain: ["--preset", "micro", "--steps", 3, "--save-at", "2", "--batch-size", 1, "--sequence-length", 8, "--threads", 1],
            rloo: ["--base", base, "--groups", 2, "--save-at", "1", "--group-size", 3, "--max-new-tokens", 2,
                   "--replay-batch", 1, "--threads", 1],
        }
        cases: list[tuple[Any, str, int, Any]] = []                       # command, the place of the fault, its error, the fault
        for module, options in commands.items():
            with changes(lambda n, what: None) as made:
                whole = Path(folder, module.__name__)
                code, _, told = call(module, *options, "--out", whole)
                assert code == 0, told
            for n in range(1, made.count + 1):
                cases += [(module, f"change {n}", number, partial(failing, n, number)) for number in ERRORS]
            if resource:
                largest = max(path.stat().st_size for path in whole.rglob("*"))
                for size in np.geomspace(1, largest + 1, 60).astype(int).tolist():
                    cases.append((module, f"{size} bytes", errno.EFBIG, partial(limited, size)))
        rng = np.random.default_rng(seed)
        for i in sorted(rng.permutation(len(cases))[:count]):
            module, place, number, fault = cases[i]
            problem = faulty(module, commands[module], fault, number, Path(folder, module.__name__), Path(folder, f"case-{i}"))
            tally.record(f"{module.__name__}, {errno.errorcode[number]}", place, problem)


@contextmanager
def failing(n: int, number: int) -> Iterator[None]:
    """Within it, the nth change to the disk fails."""

    def fail(change: int, what: Any) -> None:
        if change == n:
            name = () if isinstance(what, int) else (str(what),)
            raise OSError(number if name or number in OF_A_FILE else errno.EIO, os.strerror(number), *name)

    with changes(fail):
        yield


@contextmanager
def limited(size: int) -> Iterator[None]:
    """Within it, the system lets no file grow beyond `size` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def faulty(module: Any, options: list[Any], fault: Any, number: int, whole: Path, out: Path) -> str:
    """Return what is wrong with a run that meets a fault, and with going on from it."""
    with fault():
        code, _, told = call(module, *options, "--out", out)
    last = told.splitlines()[-1:]
    if code != 0 and (code != 2 or "Traceback" in told or not last or os.strerror(number) not in last[0]):
        return f"exit code {code}, {last}"
    begun = (out / "last").exists() or (out / ".last.old").exists()
    if begun:
        try:
            MiniMoE.from_pretrained(out / "last")
            load_run(out / "last")
        except Exception as error:
            return f"the checkpoint that is left: {error!r}"
    code, _, told = call(module, *(["--resume"] if begun else options), "--out", out)
    if code:
        return f"to go on: exit code {code}, {told[-200:]!r}"
    return differences(out, whole)


def differences(out: Path, whole: Path) -> str:
    """Return what of a run differs from the same run without faults."""
    left = {path.name for path in out.iterdir() if path.name.startswith(".")}
    if left - LEFTOVERS:
        return f"{left} are left over"
    names = {path.name for path in whole.iterdir()}
    if {path.name for path in out.iterdir()} - left != names:
        return f"holds {sorted(path.name for path in out.iterdir())}, not {sorted(names)}"
    for name in names:
        if (whole / name).is_dir() and bits(out / name) != bits(whole / name):
            return f"{name} holds other bits"
    if records(out) != records(whole):
        return "metrics.jsonl says other things"
    rollouts = "rollouts.jsonl"
    if rollouts in names and (out / rollouts).read_bytes() != (whole / rollouts).read_bytes():
        return f"{rollouts} says other things"
    return ""


def main() -> None:
    fatal, module = int(sys.argv[1]), sys.argv[2]
    sys.argv[1:3] = []

    def die(change: int, what: Any) -> None:
        if change == fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    with changes(die):
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
