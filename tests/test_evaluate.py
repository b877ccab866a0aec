import json

import numpy as np
import pytest

from minimoe import evaluate
from minimoe.coding.scoring import pass_at_k
from minimoe.coding.tasks import FAMILIES, TRAINED, fixed_tasks
from minimoe.config import PRESETS
from minimoe.model import MiniMoE
from minimoe.tokenizer import EOS, encode
from tests import commands


def command(monkeypatch, *arguments):
    return commands.command(evaluate, monkeypatch, *arguments)


@pytest.fixture
def checkpoints(tmp_path, monkeypatch):
    """Three saved models, and a `generate` by which model i solves the tasks whose number is below its skill, more or less."""
    paths = [tmp_path / f"model{i}" for i in range(3)]
    for seed, path in enumerate(paths):
        MiniMoE(PRESETS["micro"], np.random.default_rng(seed)).save_pretrained(path)
    real = MiniMoE.from_pretrained

    def load(path):
        model = real(path)
        model.skill = [16, 40, 64][int(path.name[-1])]
        return model

    def fake(model, prompts, max_new_tokens, temperature, seed):
        tasks = fixed_tasks("confirm")
        samples = len(prompts) // len(tasks)
        answers = [task.solution if i < model.skill - s else "    return x\n"
                   for i, task in enumerate(tasks) for s in range(samples)]
        return [encode(answer) + [EOS] for answer in answers]

    monkeypatch.setattr(MiniMoE, "from_pretrained", load)
    monkeypatch.setattr("minimoe.coding.scoring.generate", fake)
    return paths


def figures(path):
    return json.loads(path.read_text())


def test_table_and_json_say_the_same(checkpoints, tmp_path, monkeypatch, capsys):
    assert command(monkeypatch, checkpoints[1], "--samples", 4, "--json", tmp_path / "result.json") == 0
    rows = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    names = [row[0].strip() for row in rows[2:13]]
    assert names == [*FAMILIES, "trained", "untrained", "all"]

    result = figures(tmp_path / "result.json")
    table, (model,) = result["after"]["figures"], result["after"]["models"]
    tasks = fixed_tasks("confirm")
    assert [task["name"] for task in model["tasks"]] == [task.name for task in tasks]
    assert [task["prompt"] for task in model["tasks"]] == [task.prompt for task in tasks]
    passed = [sum(one["status"] == "passed" for one in task["samples"]) for task in model["tasks"]]
    solved = [task["greedy"]["status"] == "passed" for task in model["tasks"]]
    assert table["all"]["greedy"] == sum(solved) == 40
    assert table["all"]["any of 4"] == sum(count > 0 for count in passed)
    for k in 1, 2:
        assert table["all"][f"pass@{k}"] == pytest.approx(sum(pass_at_k(4, count, k) for count in passed))
    trained = [task.family in TRAINED for task in tasks]
    assert table["trained"]["greedy"] == sum(s for s, t in zip(solved, trained) if t) == 24
    assert table["greedy_interval"]["low"] < 40 < table["greedy_interval"]["high"]


def test_gains_losses_and_their_p(checkpoints, tmp_path, monkeypatch, capsys):
    assert command(monkeypatch, checkpoints[1], "--compare", checkpoints[0], "--samples", 0, "--json", tmp_path / "r") == 0
    comparison = figures(tmp_path / "r")["comparison"]
    assert (comparison["gains"], comparison["losses"], comparison["difference"]) == (24, 0, 24)
    assert comparison["mcnemar_p"] == pytest.approx(2 / 2**24)
    assert "24 gained, 0 lost" in capsys.readouterr().out

    assert command(monkeypatch, checkpoints[0], "--compare", checkpoints[0], "--samples", 0, "--json", tmp_path / "r") == 0
    comparison = figures(tmp_path / "r")["comparison"]
    assert comparison["difference"] == comparison["gains"] == 0 and comparison["mcnemar_p"] == 1


def test_several_checkpoints_are_averaged(checkpoints, tmp_path, monkeypatch):
    assert command(monkeypatch, *checkpoints, "--samples", 0, "--json", tmp_path / "r") == 0
    result = figures(tmp_path / "r")["after"]
    assert result["figures"]["all"]["greedy"] == pytest.approx((16 + 40 + 64) / 3)
    assert [model["checkpoint"] for model in result["models"]] == list(map(str, checkpoints))


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["missing"], "missing"),
        (["model0", "--per-family", "0"], "--per-family"),
        (["model0", "--per-family", "5000"], "5000"),
        (["model0", "--split", "train"], "--split"),
        (["model0", "--samples", "-1"], "--samples"),
        (["model0", "--temperature", "0"], "--temperature"),
        (["model0", "--json", "nowhere/result.json"], "nowhere"),
        ([], "CHECKPOINT"),
    ],
)
def test_bad_arguments_are_one_line(tmp_path, monkeypatch, capsys, arguments, says):
    MiniMoE(PRESETS["micro"], np.random.default_rng(0)).save_pretrained(tmp_path / "model0")
    monkeypatch.chdir(tmp_path)
    line = commands.refused(evaluate, monkeypatch, capsys, *arguments)
    assert says in line
