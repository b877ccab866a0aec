"""The README says what is so."""

import doctest
import json
import re
import shlex
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from minimoe import MiniMoE, cli
from minimoe.coding.tasks import FAMILIES, make_task
from minimoe.coding.verifier import verify
from minimoe.config import PRESETS
from tests.test_results import table as results

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_examples_print_what_they_say():
    results = doctest.testfile(str(ROOT / "README.md"), module_relative=False)
    assert results.attempted > 10 and results.failed == 0


def test_from_python(tmp_path, monkeypatch, capsys):
    block = next(block for block in re.findall(r"```python\n(.*?)```", README, re.S) if "from_pretrained" in block)
    folder = tmp_path / "checkpoints" / "released" / "rloo"
    MiniMoE(PRESETS["micro"], np.random.default_rng(0)).save_pretrained(folder)
    monkeypatch.chdir(tmp_path)
    exec(block, {})
    assert capsys.readouterr().out.startswith("def double_1a2b(x):\n")


def test_map_names_every_module():
    drawn = README[README.index("    minimoe/\n") : README.index("Data runs one way")]
    modules = {path.stem for path in (ROOT / "minimoe").rglob("*.py")} - {"__init__", "errors"}
    folded = {path.stem for folder in ("coding", "training") for path in (ROOT / "minimoe" / folder).glob("*.py")}
    missing = {name for name in modules - folded if not re.search(rf"\b{name}\b", drawn)}
    assert not missing


@pytest.mark.parametrize("command", re.findall(r"`python -m (minimoe\.\w+)", README))
def test_commands_exist(command):
    assert (ROOT / (command.replace(".", "/") + ".py")).exists()


BLOCKS = "\n".join(re.findall(r"^```sh\w*.*?\n(.*?)^```", README, re.S | re.M)).replace("\\\n", "")
TYPED = [line for block in BLOCKS.splitlines() for line in block.split(" && ") if line.startswith("python -m minimoe.")]


@pytest.mark.parametrize("line", TYPED)
def test_what_is_typed_is_understood(line, monkeypatch):
    """Every command of a block has such options, of such values, and names checkpoints that are there or made just before."""
    _, _, name, *arguments = shlex.split(line)
    parse, parsed = cli.Parser.parse_args, []

    def parse_only(self, *given):
        parsed.append(parse(self, *given))
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.Parser, "parse_args", parse_only)
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    with pytest.raises(KeyboardInterrupt):
        import_module(name).main()
    assert parsed
    for argument in arguments:
        if argument.startswith("checkpoints/") and "--out" not in arguments[arguments.index(argument) - 1]:
            made = re.findall(r"--out (\S+)", BLOCKS[: BLOCKS.index(line)])
            assert (ROOT / argument).exists() or any(argument.startswith(f"{folder}/") for folder in made)


def test_the_released_model_writes_what_it_was_trained_for(monkeypatch, capsys):
    line = next(line for line in TYPED if "minimoe.generate" in line)
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", shlex.split(line)[2:])
    import_module("minimoe.generate").main()
    tasks = [make_task("even", 0x1A2B, i) for i in range(len(FAMILIES["even"].descriptions))]
    written = capsys.readouterr().out.removesuffix("\n")
    assert [verify(task, written).status for task in tasks if written.startswith(task.prompt)] == ["passed"]


def test_pictures_and_pages_are_there():
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    assert len(targets) > 20 and all((ROOT / target).exists() for target in targets)


def test_sizes_are_those_of_the_model():
    counts = MiniMoE(PRESETS["full"], rng=None).parameter_counts()
    assert f"{counts['total']:,} parameters" in README and f"{counts['active']:,}" in README


def test_results_are_the_receipts():
    tables = results.tables()
    first = ["|".join(line.split("|")[:7]) + "|" for line in tables["released base"].splitlines()]    # the figure has the families
    assert "\n".join(first) + "\n" in README
    told = re.search(r"raises (\d+) to ([\d.]+\d), and (\d+) to ([\d.]+\d)", README).groups()
    found = [solved(table, row) for table in ("pretraining seed 1", "pretraining seed 2") for row in ("before", "RL with replay")]
    assert [float(number) for number in told] == found
    assert f"57 more steps of pretraining instead\nsolves {solved('more', '57 more steps of pretraining'):.0f}." in README


def solved(table, row):
    """The first number of a row of a table of results."""
    return float(re.search(rf"^\| {row} \| ([\d.]+) \|", results.tables()[table], re.M)[1])


def test_pretraining_table_is_the_receipt():
    receipt = json.loads((ROOT / "lessons/receipts/ch12.json").read_text())
    losses = dict(zip(receipt["step"], receipt["loss"], strict=True))     # of every tenth step
    rows = re.findall(r"^ +(\d+ +[\d.]+ +[\d ]+)$", README[README.index("     step    loss") :], re.M)
    assert len(rows) == 8
    for row in rows:
        step, loss, total, *families = row.split()
        assert int(step) % 10 or float(loss) == round(losses[int(step)], 3)
        expected = receipt["dev"][step]
        assert [int(n) for n in families] == list(expected.values()) and int(total) == sum(expected.values())


def test_speed_table_is_the_receipt():
    figures = json.loads((ROOT / "checkpoints/results/bench.json").read_text())
    seconds, memory, decoding = figures["training"]["seconds"], figures["memory"], figures["decoding"]
    rows = [
        f"| a training step of 32 x 128 tokens | {seconds['step']:.2f} s | {seconds['products']:.2f} s | {seconds['torch step']:.2f} s |",
        f"| memory of pretraining, at most | {memory['pretrain']:.2f} GB | | {memory['torch']:.2f} GB |",
    ]
    for name, what in [("batch 1", "decoding a token"), ("batch 64", "decoding a token of each of 64 rows")]:
        ms = [1e3 * decoding[name][column] for column in ("seconds", "limit", "torch seconds")]
        rows.append(f"| {what} | {ms[0]:.1f} ms | {ms[1]:.1f} ms | {ms[2]:.1f} ms |")
    assert "\n".join(rows) + "\n" in README
    for version in (figures["machine"]["numpy"], figures["machine"]["torch"].split("+")[0]):
        assert version in README
