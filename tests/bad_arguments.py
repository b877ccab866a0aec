"""Every option of every command, given what it cannot take."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from minimoe import cli
from minimoe.config import PRESETS
from minimoe.model import MiniMoE
from tests.bad_checkpoints import nobody
from tests.commands import call, refusal

COMMANDS = "pretrain", "rloo", "evaluate", "generate", "inspect", "release", "gradcheck", "bench"
HUGE, LONG = "9" * 5000, "x" * 300    # a number beyond any, and a name longer than a file's may be
NO_NUMBERS = ["", " ", "x", "0x10", "1,5", "--", "1e", "nan", "NaN", "inf", "-inf", "1e999", "½", "\udcff", "1\n2", "\x1b[2J", "None", "[1]"]
NO_WHOLE_NUMBERS = [*NO_NUMBERS, "1.5", "1e3", "-1", "4294967296", HUGE, "-" + HUGE]
BAD = {    # by the type of an option
    "positive_int": [*NO_WHOLE_NUMBERS, "0", "-0"],
    "non_negative_int": NO_WHOLE_NUMBERS,
    "positive_float": [*NO_NUMBERS, "0", "-0.0", "1e-999", "-1"],
    "non_negative_float": [*NO_NUMBERS, "-1", "-1e-300"],
    "finite_float": NO_NUMBERS,
    "steps_list": [value for value in NO_WHOLE_NUMBERS if value] + ["0", "1,0", ",", "1,,2", "1;2", "1 2", "1,-2", "1,x"],
    "names_list": ["", ",", "x", "increment,", ",increment", "increment,x", "Increment", "increment double", "\udcff"],
    "choices": ["", "x", "Full", "full ", "\udcff", HUGE],
    "output_file": ["", ".", "/", "missing/file.json", "file/file.json", LONG, "closed/file.json", "closed.json"],
    "folder to write": ["file", "file/run", "mine", LONG, "closed/run", "/dev/null", "/dev/full/run", "/proc/run"],
    "checkpoint": ["", "missing", "file", "mine", ".", "/", LONG, "/dev/zero", "model/config.json", "~", "\udcff", "-", "a\nb"],
}


class Case(NamedTuple):
    command: str
    arguments: list[str]
    says: tuple[str, ...]
    shown: str


def arguments(tally: Any, count: int = 100_000, seed: int = 0) -> None:
    """Give every option of every command what it cannot take: each is refused in one line, and nothing is made."""
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)                                           # for nobody
        os.chdir(folder)
        try:
            MiniMoE(PRESETS["micro"], np.random.default_rng(seed)).save_pretrained("model")
            Path("file").write_text("mine")
            Path("mine").mkdir()
            Path("mine/file").write_text("mine")
            Path("model/model.safetensors").chmod(0o644)
            Path("closed").mkdir(mode=0o555)
            Path("closed.json").touch(mode=0o444)
            cases = list(all_cases())
            for i in sorted(np.random.default_rng(seed).permutation(len(cases))[:count]):
                tally.record(f"minimoe.{cases[i].command}", cases[i].shown, problem(cases[i]))
        finally:
            os.chdir(here)


def problem(case: Case) -> str:
    before = set(Path(".").iterdir())
    module = import_module(f"minimoe.{case.command}")
    with nobody() if any("closed" in argument for argument in case.arguments) else nullcontext():
        wrong = refusal(call(module, *case.arguments), *case.says)
    made = set(Path(".").iterdir()) - before
    for path in made:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return wrong or (f"made {made}" if made else "")


def all_cases() -> Iterator[Case]:
    sound = {
        "pretrain": ["--preset", "micro", "--steps", "2", "--save-at", "2", "--out", "out"],
        "rloo": ["--base", "model", "--groups", "2", "--save-at", "2", "--out", "out"],
        "evaluate": ["model", "--samples", "0"], "generate": ["--checkpoint", "model", "x"],
        "inspect": ["model", "x", "--max-new-tokens", "2", "--out", "out.html"], "release": ["model", "out"],
        "gradcheck": ["rope"], "bench": ["--preset", "micro", "--sequence-length", "8"],
    }
    for command in COMMANDS:
        for action in parser_of(command)._actions:
            option = action.option_strings[-1:]
            if not option or action.dest == "help":
                continue
            yield Case(command, [*sound[command], *option], (option[0],), f"{option[0]} without a value") if action.nargs != 0 \
                else Case(command, [*sound[command], f"{option[0]}=1"], (option[0],), f"{option[0]}=1")
            if action.nargs == 0:
                continue
            for value in bad_values(action):
                told = () if kind_of(action) in ("checkpoint", "folder to write") or value == LONG else (option[0],)
                yield Case(command, [*sound[command], f"{option[0]}={value}"], told, f"{option[0]}={value[:40]!r}")
        for extra in ["--nothing"], ["--nothing=1"], ["-x"], ["--ou", "x"], ["--see=1"]:
            yield Case(command, [*sound[command], *extra], (extra[0],), f"{extra}")
        for values in CONTRADICTIONS.get(command, []):
            *given, says = values
            yield Case(command, [*sound[command], *given], (says,), f"{given}")
    for command, values in POSITIONAL.items():
        for *given, says in values:
            yield Case(command, given, (says,), f"{given!r:.60}")


CONTRADICTIONS = {    # options that go together badly, and what the line must name
    "pretrain": [
        ["--save-at", "3", "--save-at"], ["--save-at", "1,2,3", "3"], ["--sequence-length", "97", "97"], ["--batch-size", "4294967295", "--batch-size"],
        ["--sequence-length", "4294967295", "--sequence-length"], ["--preset", "full", "--sequence-length", "193", "192"], ["--resume", "no run"],
        ["--batch-size", "1048576", "--batch-size"], ["--resume", "--out", "mine", "mine"], ["--resume", "--out", "file", "file"], ["surplus", "surplus"],
    ],
    "rloo": [
        ["--save-at", "3", "--save-at"], ["--group-size", "1", "--group-size"], ["--group-size", "4294967295", "--group-size"],
        ["--policy", "0", "--replay", "0", "--replay"], ["--replay-batch", "4294967295", "--replay-batch"], ["--policy", "1e300", "--policy"],
        ["--max-new-tokens", "4294967295", "--max-new-tokens"], ["--replay", "1e300", "--replay"], ["--invalid-reward", "-1e300", "--invalid-reward"],
        ["--temperature", "1e-300", "--temperature"], ["--temperature", "1e300", "--temperature"], ["--resume", "no run"], ["--resume", "--out", "mine", "mine"],
        ["--families", "", "--families"], ["surplus", "surplus"],
    ],
    "evaluate": [
        ["--samples", "4294967295", "--samples"], ["--per-family", "4294967295", "4294967295"], ["--compare", "missing", "missing"], ["missing", "missing"],
        ["--compare", "model", "missing", "missing"],
    ],
    "generate": [["", "a prompt is empty"], ["\udcff", "lone surrogate"], ["x" * 96, "97 tokens"], ["é" * 48, "97 tokens"], ["y", "x" * 100_000, "100001 tokens"]],
    "inspect": [["surplus", "surplus"]],
    "release": [["--base", "mine", "config.json"], ["surplus", "surplus"]],
    "gradcheck": [["nothing", "nothing"], ["", "''"], ["rope", "\udcff", "\\udcff"]],
    "bench": [["--sequence-length", "97", "97"], ["--sequence-length", "4294967295", "--sequence-length"],
              ["--batch-size", "4294967295", "--batch-size"], ["--length", "--checkpoint", "model", "--length"], ["surplus", "surplus"]],
}
POSITIONAL = {
    "evaluate": [[value, "config.json"] for value in BAD["checkpoint"] if value not in ("-", LONG) and "\n" not in value] + [["CHECKPOINT"]],
    "generate": [["--checkpoint", "model", "PROMPT"]],
    "inspect": [["model", "PROMPT"], ["missing", "x", "missing"], ["model", "", "a prompt is empty"], ["model", "\udcff", "lone surrogate"],
                ["model", "x" * 96, "97 tokens"], ["file", "x", "file"]],
    "release": [["CHECKPOINT"], ["model", "OUT"], ["missing", "out", "missing"], ["file", "out", "file"], ["model", "mine", "mine"], ["model", "file", "file"],
                ["model", "file/out", "file"], ["model", LONG, LONG], ["model", "closed/out", "closed"], ["model", "/proc/out", "/proc"]],
}


def parser_of(command: str) -> cli.Parser:
    """The parser that a command makes."""
    made: list[cli.Parser] = []

    def keep(self: cli.Parser, *_: Any) -> None:
        made.append(self)
        raise SystemExit

    with mock.patch.object(cli.Parser, "parse_args", keep), mock.patch.object(sys, "argv", [command]):
        try:
            import_module(f"minimoe.{command}").main()
        except SystemExit:
            pass
    return made[0]


def kind_of(action: Any) -> str:
    if action.choices:
        return "choices"
    if action.dest == "out" and action.type is Path:
        return "folder to write"
    if action.dest in ("base", "checkpoint", "compare"):
        return "checkpoint"
    return action.type.__name__


def bad_values(action: Any) -> list[str]:
    return BAD[kind_of(action)]
