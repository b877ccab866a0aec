import json
import os
import shutil
import signal
import time
from functools import partial

import numpy as np
import pytest
from safetensors.numpy import load_file

from minimoe import pretrain
from minimoe.coding.tasks import FAMILIES
from minimoe.config import PRESETS
from minimoe.errors import InputError
from minimoe.files import alone
from minimoe.gradcheck import randomize
from minimoe.model import MiniMoE
from minimoe.training import objective
from minimoe.training.losses import cross_entropy, load_balance
from minimoe.training.parallel import Workers
from tests import commands, oracles
from tests.commands import bits, records, steps_done

MICRO = PRESETS["micro"]
command, refused = partial(commands.command, pretrain), partial(commands.refused, pretrain)
start, finish = partial(commands.start, pretrain), partial(commands.finish, pretrain)


@pytest.fixture(autouse=True)
def few_dev_tasks(monkeypatch):
    monkeypatch.setattr(pretrain, "DEV_TASKS", 1)


def train(out, threads=2, resume=False, **given):
    """Train the micro model for three short steps, unless `given` says otherwise; return whether it came to its end."""
    settings = dict(preset="micro", steps=3, save_at=(), batch_size=5, sequence_length=12, learning_rate=4e-3)
    return pretrain.train(settings | pretrain.COMMON | given, out, threads, resume)


def test_a_run_writes_what_it_promises(tmp_path, monkeypatch, capsys):
    out = tmp_path / "run"
    monkeypatch.setattr(pretrain, "SAVE_EVERY", 2)
    assert command(monkeypatch, "--preset", "micro", "--steps", 3, "--save-at", "2", "--out", out, "--threads", 2) == 0
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    promised = {"step", "loss", "balance_loss", "expert_load", "gradient_norm", "learning_rate", "tokens", "seconds"}
    for line in lines:
        assert set(line) - {"dev"} == promised
        assert line["learning_rate"] == 4e-3 and line["seconds"] > 0 and line["gradient_norm"] > 0
        assert line["tokens"] == line["step"] * 4 * 40
        assert 4 <= line["balance_loss"] < 4 * MICRO.experts              # over four blocks; 1 each when balanced
        np.testing.assert_allclose(np.sum(line["expert_load"], axis=1), np.ones(MICRO.blocks), atol=5e-4)
        assert np.shape(line["expert_load"]) == (MICRO.blocks, MICRO.experts)
    assert abs(lines[0]["loss"] - np.log(MICRO.vocabulary)) < 0.1         # it begins by knowing nothing
    assert [list(line.get("dev", [])) for line in lines] == [[], list(FAMILIES), list(FAMILIES)]

    assert sorted(path.name for path in out.iterdir()) == ["last", "metrics.jsonl", "step-0002"]
    assert steps_done(out) == 3
    assert bits(out / "step-0002")["model.safetensors"] != bits(out / "last")["model.safetensors"]
    printed = capsys.readouterr()
    table = [line.split() for line in printed.out.splitlines()]
    assert table[0] == ["step", "loss", "solved", *FAMILIES] and [row[0] for row in table[1:3]] == ["2", "3"]
    assert "11,836 parameters, 8,812 active" in printed.err and "step 3/3" in printed.err


def test_the_loss_falls(tmp_path):
    assert train(tmp_path, steps=25, sequence_length=24)
    losses = [record["loss"] for record in records(tmp_path)]
    assert losses[-1] < losses[0] - 1


def test_save_points_beyond_the_end_are_dropped_and_kept_for_later(tmp_path, monkeypatch):
    monkeypatch.setitem(pretrain.DEFAULTS["micro"], "save_at", (1, 4))
    out = tmp_path / "run"
    assert command(monkeypatch, "--preset", "micro", "--steps", 2, "--out", out) == 0
    assert sorted(path.name for path in out.glob("step*")) == ["step-0001"]
    assert command(monkeypatch, "--resume", "--steps", 4, "--out", out) == 0
    assert sorted(path.name for path in out.glob("step*")) == ["step-0001", "step-0004"]
    assert bits(out / "step-0004").items() <= bits(out / "last").items()
    assert command(monkeypatch, "--resume", "--steps", 6, "--save-at", "3,5", "--out", out) == 0
    assert sorted(path.name for path in out.glob("step*")) == ["step-0001", "step-0004", "step-0005"]


def test_the_gradient_is_clipped_to_its_limit(tmp_path, monkeypatch):
    for name, limit in ("short", 1e-3), ("whole", 1e3):
        monkeypatch.setattr(pretrain, "CLIP", limit)
        train(tmp_path / name, steps=1)
        moments = load_file(tmp_path / name / "last" / "optimizer.safetensors")
        length = np.sqrt(sum(np.sum(m**2, dtype=float) for key, m in moments.items() if key.startswith("m.")))
        norm = records(tmp_path / name)[0]["gradient_norm"]
        assert 1e-2 < norm < 1e2
        np.testing.assert_allclose(length, 0.1 * min(limit, norm), rtol=1e-4)          # m = (1 - 0.9) g after a step


def test_the_seed_draws_weights_and_batches(tmp_path, monkeypatch):
    batch, drawn, weights = pretrain.batch, [], []

    def recorded(*arguments):
        ids, solution = batch(*arguments)
        drawn.append(ids.tobytes())
        return ids, solution

    monkeypatch.setattr(pretrain, "batch", recorded)
    for run, seed in enumerate((1, 2, 1)):
        train(tmp_path / str(run), steps=2, seed=seed, learning_rate=1e-30)    # the weights stay as drawn
        weights.append(load_file(tmp_path / str(run) / "last" / "model.safetensors")["blocks.0.moe.experts.up"])
    np.testing.assert_array_equal(weights[0], weights[2])
    assert (weights[0] != weights[1]).mean() > 0.99
    assert len(set(drawn[:4])) == 4 and drawn[4:] == drawn[:2]            # each step's and each seed's, and repeatable


def test_the_same_settings_give_the_same_bytes_on_any_number_of_threads(tmp_path):
    for run, threads in enumerate((1, 1, 2, 4)):
        assert train(tmp_path / str(run), threads)
    for run in "123":
        assert bits(tmp_path / run / "last") == bits(tmp_path / "0" / "last")
        assert records(tmp_path / run) == records(tmp_path / "0")


def test_evaluating_and_saving_more_often_change_nothing(tmp_path, monkeypatch):
    train(tmp_path / "seldom", steps=4)
    monkeypatch.setattr(pretrain, "EVALUATE_EVERY", 1)
    monkeypatch.setattr(pretrain, "SAVE_EVERY", 1)
    train(tmp_path / "often", steps=4, save_at=(2,))
    assert "dev" in (tmp_path / "often" / "metrics.jsonl").read_text().splitlines()[0]
    assert bits(tmp_path / "often" / "last") == bits(tmp_path / "seldom" / "last")
    assert records(tmp_path / "often") == records(tmp_path / "seldom")


def test_a_run_in_two_parts_is_the_run_at_once(tmp_path):
    train(tmp_path / "once", steps=6)
    train(tmp_path / "parts", steps=3)
    assert bits(tmp_path / "parts" / "last") != bits(tmp_path / "once" / "last")
    train(tmp_path / "parts", steps=6, resume=True, threads=3)
    assert bits(tmp_path / "parts" / "last") == bits(tmp_path / "once" / "last")
    assert records(tmp_path / "parts") == records(tmp_path / "once")
    assert [record["step"] for record in records(tmp_path / "parts")] == [1, 2, 3, 4, 5, 6]


def test_a_run_that_died_after_its_last_save_redoes_those_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(pretrain, "SAVE_EVERY", 2)
    gradients = pretrain.pretraining_gradients
    steps = []

    def dies_in_step_6(*arguments):
        steps.append(arguments)
        if len(steps) == 6:
            raise SystemError("killed")
        return gradients(*arguments)

    train(tmp_path / "whole", steps=7)
    monkeypatch.setattr(pretrain, "pretraining_gradients", dies_in_step_6)
    with pytest.raises(SystemError):
        train(tmp_path / "died", steps=7)
    monkeypatch.setattr(pretrain, "pretraining_gradients", gradients)
    with open(tmp_path / "died" / "metrics.jsonl", "a") as file:
        file.write('{"step": 6, "lo')                                     # a line that a kill cut short
    assert steps_done(tmp_path / "died") == 4
    train(tmp_path / "died", steps=7, resume=True)
    assert bits(tmp_path / "died" / "last") == bits(tmp_path / "whole" / "last")
    assert records(tmp_path / "died") == records(tmp_path / "whole")


def test_ctrl_c_ends_after_the_step_and_saves(tmp_path, monkeypatch, capsys):
    batch = pretrain.batch

    def interrupted(seed, step, *sizes):
        if step == 3:
            signal.raise_signal(signal.SIGINT)
        return batch(seed, step, *sizes)

    monkeypatch.setattr(pretrain, "batch", interrupted)
    assert not train(tmp_path, steps=6)
    assert steps_done(tmp_path) == 3 and [record["step"] for record in records(tmp_path)] == [1, 2, 3]
    told = capsys.readouterr().err
    assert f"stopped after step 3; to go on: python -m minimoe.pretrain --resume --out {tmp_path}\n" in told


ENDLESS = ["--preset", "micro", "--steps", 10**6, "--sequence-length", 12, "--save-at", ""]


@pytest.mark.skipif(os.name == "nt", reason="no process can be sent Ctrl-C alone there")
def test_the_command_ends_on_ctrl_c_and_goes_on(tmp_path):
    out = tmp_path / "run"
    process = start(*ENDLESS, "--out", out)
    _, told = commands.interrupt(process, "step 1/")
    assert process.returncode == 130
    done = steps_done(out)
    assert f"stopped after step {done}; to go on: python -m minimoe.pretrain --resume --out {out}" in told
    assert "Traceback" not in told and MiniMoE.from_pretrained(out / "last")

    finish("--resume", "--out", out, "--steps", done + 2)
    finish(*ENDLESS, "--out", tmp_path / "whole", "--steps", done + 2)
    assert bits(out / "last") == bits(tmp_path / "whole" / "last") and steps_done(out) == done + 2
    assert records(out) == records(tmp_path / "whole")


def test_a_killed_command_goes_on(tmp_path):
    out = tmp_path / "run"
    process = start(*ENDLESS, "--out", out)
    metrics, begun = out / "metrics.jsonl", time.monotonic()
    while not metrics.exists() or metrics.read_bytes().count(b"\n") < 24:
        assert process.poll() is None and time.monotonic() < begun + 60
        time.sleep(0.001)
    process.kill()
    process.communicate()
    seen = metrics.read_bytes().count(b"\n")
    assert 20 <= steps_done(out) <= seen and steps_done(out) % 20 == 0          # the steps after the last save are redone

    finish("--resume", "--out", out, "--steps", seen + 2)
    finish(*ENDLESS, "--out", tmp_path / "whole", "--steps", seen + 2)
    assert bits(out / "last") == bits(tmp_path / "whole" / "last")
    assert records(out) == records(tmp_path / "whole")


BAD = {
    "--preset": ["huge", ""],
    "--steps": ["0", "-1", "1.5", "x", "nan", "4294967296"],
    "--batch-size": ["0", "-2", "x", "4294967296"],
    "--sequence-length": ["0", "-1", "x", MICRO.context + 1, "4294967295"],
    "--learning-rate": ["0", "-0.001", "nan", "inf", "1e999", "x"],
    "--weight-decay": ["-0.1", "nan", "inf", "x"],
    "--seed": ["-1", "1.5", "4294967296"],
    "--save-at": ["0", "5,,6", "-1", "x", "21", "3,21"],
    "--threads": ["0", "-1", "x", "4294967296"],
    "--nothing": ["x"],
}


@pytest.mark.parametrize("option", BAD)
def test_a_bad_value_is_refused_before_anything_is_made(tmp_path, monkeypatch, capsys, option):
    for value in BAD[option]:
        preset = () if option == "--preset" else ("--preset", "micro")
        line = refused(monkeypatch, capsys, *preset, "--out", tmp_path / "run", option, value)
        assert option in line and str(value).split(",")[-1] in line
        assert list(tmp_path.iterdir()) == []


def test_the_command_itself_ends_in_one_line(tmp_path):
    process = start("--steps", "0", "--out", tmp_path / "run")
    printed, told = process.communicate(timeout=60)
    assert process.returncode == 2 and printed == ""
    assert told.startswith("minimoe.pretrain: ") and "--steps" in told and told.count("\n") == 1


def test_a_folder_with_anything_in_it_is_left_alone(tmp_path, monkeypatch, capsys):
    out = tmp_path / "run"
    out.mkdir()
    (out / "thesis.txt").write_text("all I have")
    line = refused(monkeypatch, capsys, "--preset", "micro", "--out", out)
    assert str(out) in line and "--resume" in line and "--out" in line
    assert [path.name for path in tmp_path.rglob("*")] == ["run", "thesis.txt"]
    assert (out / "thesis.txt").read_text() == "all I have"

    line = refused(monkeypatch, capsys, "--preset", "micro", "--out", out / "thesis.txt")
    assert "thesis.txt" in line and "--out" in line and (out / "thesis.txt").read_text() == "all I have"

    (out / "thesis.txt").unlink()                                         # an empty folder will do
    assert command(monkeypatch, "--preset", "micro", "--steps", 1, "--save-at", "", "--out", out) == 0


def test_resume_where_there_is_nothing_to_resume(tmp_path, monkeypatch, capsys):
    (tmp_path / "empty").mkdir()
    for out in "none", "empty":
        line = refused(monkeypatch, capsys, "--resume", "--out", tmp_path / out)
        assert str(tmp_path / out) in line and "leave out --resume" in line
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("finished") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretrain, "DEV_TASKS", 1)
        assert train(out, steps=3)
    return out


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--seed", "1", "0"),
        ("--preset", "nano", "micro"),
        ("--batch-size", "4", "5"),
        ("--sequence-length", "20", "12"),
        ("--weight-decay", "0", "0.1"),
        ("--steps", "2", "3"),
        ("--save-at", "4", "3"),
    ],
)
def test_resume_does_not_change_the_run(finished, monkeypatch, capsys, option, value, says):
    before = bits(finished / "last") | {"metrics": (finished / "metrics.jsonl").read_bytes()}
    line = refused(monkeypatch, capsys, "--resume", "--out", finished, option, value)
    assert option in line and value in line and says in line
    assert bits(finished / "last") | {"metrics": (finished / "metrics.jsonl").read_bytes()} == before


def test_resume_of_a_run_whose_steps_are_not_its_updates_is_refused(finished, tmp_path, monkeypatch, capsys):
    shutil.copytree(finished, tmp_path / "run")
    path = tmp_path / "run" / "last" / "run.json"
    run = json.loads(path.read_text())
    path.write_text(json.dumps(run | {"step": run["step"] + 1}))
    assert str(path) in refused(monkeypatch, capsys, "--resume", "--out", tmp_path / "run", "--steps", 9)


@pytest.mark.skipif(os.name == "nt", reason="Windows cannot lock a folder")
def test_a_run_that_another_process_is_writing_is_left_alone(finished, monkeypatch, capsys):
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    with alone(finished):
        assert "another process is writing" in refused(monkeypatch, capsys, "--resume", "--out", finished, "--steps", 9)
    assert before == {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}


@pytest.mark.skipif(os.name == "nt", reason="Windows moves no folder that is in use")
@pytest.mark.parametrize("what", ["moved", "replaced", "deleted"])
def test_a_run_whose_folder_is_taken_away_stops_before_it_saves(tmp_path, monkeypatch, what):
    """It would write into whatever run has its place now."""
    out, gradients = tmp_path / "run", pretrain.pretraining_gradients

    def taken(model, ids, workers):
        if out.exists() and (out / "last").exists():
            shutil.rmtree(out) if what == "deleted" else out.rename(tmp_path / "elsewhere")
            if what == "replaced":
                out.mkdir()
                (out / "metrics.jsonl").write_text("")
        return gradients(model, ids, workers)

    monkeypatch.setattr(pretrain, "pretraining_gradients", taken)
    with pytest.raises(InputError, match="metrics.jsonl was moved or deleted"):
        train(out, steps=3, save_at=(1, 2, 3))
    assert not (out / "last").exists() and not list(out.glob("step-*"))


def test_metrics_that_no_run_wrote_do_no_harm(finished, tmp_path, monkeypatch, capsys):
    shutil.copytree(finished, tmp_path / "run")
    path = tmp_path / "run" / "metrics.jsonl"
    record = json.loads(path.read_text().splitlines()[-1])
    path.write_text(json.dumps(record).replace(str(record["loss"]), "1" + "0" * 400) + "\n")
    assert command(monkeypatch, "--resume", "--out", tmp_path / "run") == 0
    path.unlink()
    path.mkdir()
    capsys.readouterr()
    assert f"{path} is no file" in refused(monkeypatch, capsys, "--resume", "--out", tmp_path / "run", "--steps", 9)


def test_resume_may_change_the_learning_rate(tmp_path, monkeypatch):
    assert command(monkeypatch, "--preset", "micro", "--out", tmp_path / "run", "--steps", "2") == 0
    assert command(monkeypatch, "--resume", "--out", tmp_path / "run", "--steps", "4", "--learning-rate", "1e-3") == 0
    assert [record["learning_rate"] for record in records(tmp_path / "run")] == [0.004, 0.004, 0.001, 0.001]


def test_resume_of_what_another_command_began_is_refused(finished, tmp_path, monkeypatch, capsys):
    settings = json.loads((finished / "last" / "run.json").read_text())["settings"]
    broken_settings = [{"batch_size": 0}, {"sequence_length": 0}, {"seed": -1}, {"learning_rate": -1}, {"weight_decay": -0.1}, {"save_at": [0]}]
    for broken in [
        {}, {"step": 3, "updates": 3}, {"step": 3, "updates": 3, "settings": {"groups": 3}}, {"settings": {}},
        *({"step": 3, "updates": 3, "settings": settings | broken} for broken in broken_settings),
    ]:
        shutil.copytree(finished, tmp_path / "run", dirs_exist_ok=True)
        (tmp_path / "run" / "last" / "run.json").write_text(json.dumps(broken))
        assert "run.json" in refused(monkeypatch, capsys, "--resume", "--out", tmp_path / "run")


def test_weights_that_are_not_numbers_are_not_saved(tmp_path, monkeypatch, capsys):
    options = ["--preset", "micro", "--out", tmp_path / "run", "--steps", "1", "--learning-rate", "1e39"]
    assert command(monkeypatch, *options) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "embedding.weight" in last and "--learning-rate" in last
    MiniMoE.from_pretrained(tmp_path / "run" / "last")

    options[3] = tmp_path / "kept"                                        # nor by --save-at, before the run ends
    assert command(monkeypatch, *options, "--save-at", "1") == 2
    assert "embedding.weight" in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "kept" / "step-0001").exists()


def test_resume_takes_what_agrees_and_may_have_nothing_left_to_do(finished, monkeypatch, capsys):
    before = bits(finished / "last")
    agreeing = ["--preset", "micro", "--seed", "0", "--learning-rate", "4e-3", "--steps", "3"]
    assert command(monkeypatch, "--resume", "--out", finished, *agreeing) == 0
    assert bits(finished / "last") == before and len(records(finished)) == 3


def test_a_gradient_that_is_not_a_number_stops_the_run_before_any_weight_moves(tmp_path, monkeypatch):
    monkeypatch.setattr(pretrain, "SAVE_EVERY", 1)
    gradients, models, before = pretrain.pretraining_gradients, [], []

    def poisoned(model, ids, workers):
        grads, metrics = gradients(model, ids, workers)
        models.append(model)
        if len(models) == 3:
            parameters = dict(model.named_parameters())
            before.extend(p.data.copy() for p in parameters.values())
            grads[parameters["blocks.2.moe.router.weight"]][1, 2] = np.nan
            grads[parameters["final_norm.weight"]][0] = -np.inf
        return grads, metrics

    monkeypatch.setattr(pretrain, "pretraining_gradients", poisoned)
    with pytest.raises(InputError, match="blocks.2.moe.router.weight") as error:
        train(tmp_path / "run", steps=5)
    assert "final_norm" not in str(error.value) and str(error.value).isprintable()
    for (name, p), old in zip(models[-1].named_parameters(), before, strict=True):
        np.testing.assert_array_equal(p.data, old, err_msg=name)
    assert len(models) == 3 and [record["step"] for record in records(tmp_path / "run")] == [1, 2]

    monkeypatch.setattr(pretrain, "pretraining_gradients", gradients)     # last/ is that of a run of two steps
    train(tmp_path / "two", steps=2)
    assert bits(tmp_path / "run" / "last") == bits(tmp_path / "two" / "last")
    train(tmp_path / "run", steps=3, resume=True)
    assert steps_done(tmp_path / "run") == 3


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_run_that_diverges_ends_in_one_line_and_its_last_save_loads(tmp_path, monkeypatch, capsys):
    out = tmp_path / "run"
    assert command(monkeypatch, "--preset", "micro", "--learning-rate", "1e30", "--out", out) == 2
    told = capsys.readouterr().err.splitlines()
    assert "embedding.weight" in told[-1] and not any(line.startswith("Traceback") for line in told)
    assert MiniMoE.from_pretrained(out / "last") and steps_done(out) == 0


def make_batch(rows, length=9):
    model = randomize(MiniMoE(MICRO, np.random.default_rng(0), np.float64), np.random.default_rng(1))
    ids = np.random.default_rng(2).integers(0, MICRO.vocabulary, (rows, length + 1))
    ids[:, -3:] = ids[:, :3]                                              # a token that is seen twice
    return model, ids


def by_hand(model, ids, parts, coefficient):
    """The gradient, cross entropy, balance loss and counts of a batch whose rows are cut into `parts`."""
    grads, loss, balance, counts = model.zero_grads(), 0.0, 0.0, 0
    for rows in parts:
        part, share = ids[rows], len(ids[rows]) / len(ids)
        logits, saved = model.forward(part[:, :-1])
        weights = np.full(part[:, 1:].shape, 1 / ids[:, 1:].size)
        _, dlogits = cross_entropy(logits, part[:, 1:], weights)
        dprobs = [coefficient * share * load_balance(block.moe.probs, block.moe.counts)[1] for block in saved.blocks]
        model.backward(dlogits, saved, grads, dprobs)
        loss += oracles.cross_entropy(logits, part[:, 1:], weights)
        balance += share * sum(oracles.load_balance(block.moe.probs, block.moe.counts) for block in saved.blocks)
        counts = counts + np.array([block.moe.counts for block in saved.blocks])
    return grads, loss, balance, counts


@pytest.mark.parametrize(
    ("rows", "coefficient", "parts"),
    [
        (9, 0.0, [slice(0, 9)]),                                          # without the balance loss cuts do not matter
        (6, 3.0, [slice(0, 1), slice(1, 3), slice(3, 4), slice(4, 6)]),   # with it they do, and rows are its weights
    ],
)
def test_the_gradient_of_a_batch_is_that_of_its_parts(monkeypatch, rows, coefficient, parts):
    monkeypatch.setattr(objective, "BALANCE", coefficient)
    model, ids = make_batch(rows)
    expected, loss, balance, counts = by_hand(model, ids, parts, coefficient)
    with Workers(2, model.zero_grads) as workers:
        grads, metrics = objective.pretraining_gradients(model, ids, workers)
    for name, p in model.named_parameters():
        tolerance = 1e-11 * np.abs(expected[p]).max() + 1e-15
        np.testing.assert_allclose(grads[p], expected[p], rtol=0, atol=tolerance, err_msg=name)
    np.testing.assert_allclose(metrics["loss"], loss, rtol=1e-12)
    if coefficient:
        np.testing.assert_allclose(metrics["balance_loss"], balance, rtol=1e-12)
    np.testing.assert_allclose(metrics["expert_load"], counts / counts.sum(axis=1, keepdims=True), atol=5.1e-5)
