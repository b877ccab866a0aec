import json
from functools import partial

import numpy as np
import pytest

from minimoe import evaluate
from minimoe.coding import scoring
from minimoe.coding.tasks import FAMILIES, PER_FAMILY, TRAINED, fixed_tasks
from minimoe.coding.verifier import verify
from minimoe.config import PRESETS
from minimoe.model import MiniMoE
from minimoe.tokenizer import EOS, encode
from tests import commands

ROWS = [*FAMILIES, "trained", "untrained", "all"]
command, refused = partial(commands.command, evaluate), partial(commands.refused, evaluate)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    for seed in range(3):
        MiniMoE(PRESETS["micro"], np.random.default_rng(seed)).save_pretrained(folder / f"seed-{seed}")
    return [folder / f"seed-{seed}" for seed in range(3)]


@pytest.fixture
def written(monkeypatch):
    """Models that know some of the answers: which, depends on their weights and, when they draw, on the seed."""
    answers = [f"    return {family.expression}\n" for family in FAMILIES.values()] + ["    return x\n", "import os\n"]
    solution = {task.prompt: task.solution for split in PER_FAMILY for task in fixed_tasks(split)}
    asked = []

    def generate(model, prompts, max_new_tokens, temperature, seed):
        asked.append((len(prompts), max_new_tokens, temperature, seed))
        knows = np.random.default_rng([seed, int(temperature * 100), int(abs(model.embedding.weight.data[0, 0]) * 1e9)])
        texts = [bytes(token - 4 for token in prompt[1:]).decode() for prompt in prompts]
        return [
            encode(solution[text] if knows.random() < 0.4 else knows.choice(answers)) + [EOS] * (knows.random() < 0.9)
            for text in texts
        ]

    monkeypatch.setattr(scoring, "generate", generate)
    return asked


def run(monkeypatch, capsys, tmp_path, *arguments):
    """What the command prints, and the JSON that it writes."""
    file = tmp_path / "result.json"
    assert command(monkeypatch, *arguments, "--json", file) == 0
    return capsys.readouterr().out, json.loads(file.read_text())


def split_table(text):
    """{row: [numbers]}, and the columns' names."""
    lines = text.splitlines()
    columns = lines[1].replace("any of ", "any-of-").split()
    return {line.split()[0]: [float(v) for v in line.split()[1:]] for line in lines[2 : 2 + len(ROWS)]}, columns


def passes(model, samples):
    """For each task, how many of its draws pass, as the JSON says."""
    assert all(len(task["samples"]) == samples for task in model["tasks"])
    return np.array([sum(draw["status"] == "passed" for draw in task["samples"]) for task in model["tasks"]])


def chosen(row, tasks):
    """Which tasks a row of the table counts."""
    family = np.array([task.family for task in tasks])
    return {"trained": np.isin(family, TRAINED), "untrained": ~np.isin(family, TRAINED)}.get(
        row, (family == row) | (row == "all")
    )


def test_a_real_model_end_to_end(checkpoints, tmp_path, monkeypatch, capsys):
    arguments = [checkpoints[0], "--samples", 2, "--per-family", 1, "--temperature", 1.5]
    text, result = run(monkeypatch, capsys, tmp_path, *arguments)
    model = MiniMoE.from_pretrained(checkpoints[0])
    tasks = fixed_tasks("confirm", 1)
    greedy = scoring.greedy(model, tasks)
    sampled = scoring.attempt(model, tasks, 2, 1.5, 0)
    (told,) = result["after"]["models"]
    for task, first, draws, one in zip(tasks, greedy, sampled, told["tasks"], strict=True):
        assert (one["name"], one["prompt"]) == (task.name, task.prompt)
        for attempt, record in zip([first, *draws], [one["greedy"], *one["samples"]], strict=True):
            assert record == {"completion": attempt.completion, **attempt.verdict._asdict()}
    assert len({draw["completion"] for one in told["tasks"] for draw in one["samples"]}) > 8
    assert run(monkeypatch, capsys, tmp_path, *arguments) == (text, result)
    assert run(monkeypatch, capsys, tmp_path, *arguments, "--seed", 1)[1]["after"]["models"] != [told]


def test_the_table_is_what_its_own_verdicts_say(checkpoints, tmp_path, monkeypatch, capsys, written):
    text, result = run(monkeypatch, capsys, tmp_path, checkpoints[0])
    assert written == [(64, 32, 0.0, 0), (512, 32, 0.35, 0)]
    table, columns = split_table(text)
    assert text.startswith(f"{checkpoints[0]} on confirm\n") and list(table) == ROWS
    assert columns == ["tasks", "greedy", "pass@1", "pass@2", "pass@4", "any-of-8"]
    assert {key: result[key] for key in ("split", "temperature", "seed")} == {
        "split": "confirm", "temperature": 0.35, "seed": 0,
    }
    tasks = fixed_tasks("confirm")
    (model,) = result["after"]["models"]
    assert model["checkpoint"] == str(checkpoints[0])
    for task, one in zip(tasks, model["tasks"], strict=True):
        assert (one["name"], one["prompt"]) == (task.name, task.prompt)
        for record in (one["greedy"], *one["samples"]):
            if record["reason"] == "did not end":
                assert (record["status"], record["passed"], record["total"]) == ("invalid", 0, len(task.cases))
            else:
                judged = verify(task, task.prompt + record["completion"])
                assert record == {"completion": record["completion"], **judged._asdict()}

    solved = np.array([one["greedy"]["status"] == "passed" for one in model["tasks"]])
    passed = passes(model, 8)
    assert 10 < solved.sum() < 54 and len(set(passed)) > 3
    figures = {"greedy": solved, "any of 8": passed > 0}
    for k in (1, 2, 4):                                                   # the share of all sets of k that have a pass
        misses = [np.prod([(8 - c - i) / (8 - i) for i in range(k)]) for c in passed]
        figures[f"pass@{k}"] = 1 - np.array(misses)
    for row in ROWS:
        counted = chosen(row, tasks)
        expected = {"tasks": counted.sum()} | {name: values[counted].sum() for name, values in figures.items()}
        assert result["after"]["figures"][row] == pytest.approx(expected)
        shown = [expected[name.replace("any-of-", "any of ")] for name in columns]
        assert table[row] == pytest.approx(shown, rel=1e-3)
    interval = result["after"]["figures"]["greedy_interval"]
    low, high = scoring.bootstrap(solved)
    assert interval == pytest.approx({"low": 64 * low, "high": 64 * high})
    assert interval["low"] < solved.sum() < interval["high"]
    assert f"greedy, all: 95% interval over tasks {interval['low']:.1f} to {interval['high']:.1f}\n" in text


def test_samples_0_is_greedy_alone(checkpoints, tmp_path, monkeypatch, capsys, written):
    text, result = run(monkeypatch, capsys, tmp_path, checkpoints[0], "--samples", 0)
    assert split_table(text)[1] == ["tasks", "greedy"] and len(written) == 1
    assert all(set(one) == {"name", "prompt", "greedy"} for one in result["after"]["models"][0]["tasks"])
    whole = run(monkeypatch, capsys, tmp_path, checkpoints[0])[1]
    assert result["after"]["figures"]["all"]["greedy"] == whole["after"]["figures"]["all"]["greedy"]


@pytest.mark.parametrize(("samples", "columns"), [(1, []), (2, ["pass@1"]), (4, ["pass@1", "pass@2"])])
def test_pass_at_k_is_shown_for_fewer_than_the_draws(
    checkpoints, tmp_path, monkeypatch, capsys, written, samples, columns
):
    text, _ = run(monkeypatch, capsys, tmp_path, checkpoints[0], "--samples", samples)
    assert split_table(text)[1] == ["tasks", "greedy", *columns, f"any-of-{samples}"]


@pytest.mark.parametrize(("split", "per_family", "count"), [("dev", 3, 3), ("dev", None, 32), ("confirm", None, 8)])
def test_the_tasks_are_those_of_the_split(
    checkpoints, tmp_path, monkeypatch, capsys, written, split, per_family, count
):
    options = ["--split", split, *(["--per-family", per_family] if per_family else []), "--samples", 1]
    text, result = run(monkeypatch, capsys, tmp_path, checkpoints[0], *options)
    names = [one["name"] for one in result["after"]["models"][0]["tasks"]]
    assert names == [task.name for task in fixed_tasks(split, count)] and result["split"] == split
    assert f"on {split}\n" in text and split_table(text)[0]["all"][0] == 8 * count


def test_several_checkpoints_give_the_mean_of_each(checkpoints, tmp_path, monkeypatch, capsys, written):
    alone = [run(monkeypatch, capsys, tmp_path, path)[1]["after"] for path in checkpoints]
    text, result = run(monkeypatch, capsys, tmp_path, *checkpoints)
    assert text.startswith(", ".join(map(str, checkpoints)))
    assert result["after"]["models"] == [one["models"][0] for one in alone]
    for row in ROWS:
        for column, value in result["after"]["figures"][row].items():
            assert value == pytest.approx(np.mean([one["figures"][row][column] for one in alone]))
    totals = [one["figures"]["all"]["greedy"] for one in alone]
    assert min(totals) < result["after"]["figures"]["all"]["greedy"] < max(totals)


def test_a_model_does_not_differ_from_itself(checkpoints, tmp_path, monkeypatch, capsys, written):
    text, result = run(monkeypatch, capsys, tmp_path, checkpoints[0], "--compare", checkpoints[0])
    assert result["comparison"] == {"difference": 0, "low": 0, "high": 0, "gains": 0, "losses": 0, "mcnemar_p": 1}
    assert result["before"] == result["after"]
    assert text.splitlines()[-1].startswith("difference +0 tasks") and text.splitlines()[-1].endswith("p = 1")


def test_what_changed_is_after_less_before(checkpoints, tmp_path, monkeypatch, capsys, written):
    text, result = run(monkeypatch, capsys, tmp_path, checkpoints[0], "--compare", checkpoints[1])
    (after,), (before,) = result["after"]["models"], result["before"]["models"]
    assert (after["checkpoint"], before["checkpoint"]) == (str(checkpoints[0]), str(checkpoints[1]))
    new, old = (
        np.array([one["greedy"]["status"] == "passed" for one in model["tasks"]]) for model in (after, before)
    )
    gains, losses = int((new & ~old).sum()), int((old & ~new).sum())
    assert gains and losses and gains != losses
    told = result["comparison"]
    low, high = scoring.bootstrap(new * 1.0 - old)
    assert told == pytest.approx({
        "difference": gains - losses, "low": 64 * low, "high": 64 * high, "gains": gains, "losses": losses,
        "mcnemar_p": scoring.mcnemar(gains, losses),
    })
    first, second = text.index(f"{checkpoints[1]} on confirm"), text.index(f"{checkpoints[0]} on confirm")
    assert first < second < text.index(f"difference {gains - losses:+}") and f"{gains} gained, {losses} lost" in text

    text, result = run(monkeypatch, capsys, tmp_path, checkpoints[0], "--compare", *checkpoints[1:])
    figures = result["after"]["figures"]["all"]["greedy"] - result["before"]["figures"]["all"]["greedy"]
    assert result["comparison"].keys() == {"difference", "low", "high"} and "McNemar" not in text
    assert result["comparison"]["difference"] == pytest.approx(figures)
    assert result["comparison"]["low"] < figures < result["comparison"]["high"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere"], "nowhere"),
        (["{good}", "nowhere"], "nowhere"),
        (["{good}", "--compare", "nowhere"], "nowhere"),
        (["{good}", "--compare"], "--compare"),
        ([], "CHECKPOINT"),
        (["{good}", "--per-family", "0"], "--per-family"),
        (["{good}", "--per-family", "2049"], "2049"),
        (["{good}", "--split", "train"], "train"),
        (["{good}", "--samples", "-1"], "--samples"),
        (["{good}", "--temperature", "0"], "--temperature"),
        (["{good}", "--temperature", "nan"], "--temperature"),
        (["{good}", "--samples", "4294967295"], "--samples"),
        (["{good}", "--seed", "-1"], "--seed"),
        (["{good}", "--json", "nowhere/result.json"], "nowhere"),
    ],
)
def test_what_cannot_be_done_is_one_line(checkpoints, tmp_path, monkeypatch, capsys, written, arguments, says):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(evaluate, "greedy", lambda *_: pytest.fail("a model was asked before all was known to be there"))
    good = str(checkpoints[0])
    assert says in refused(monkeypatch, capsys, *(argument.format(good=good) for argument in arguments))
    assert list(tmp_path.iterdir()) == []
