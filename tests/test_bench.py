import importlib.util
import json
from functools import partial

import numpy as np
import pytest

from minimoe import bench
from minimoe.config import PRESETS
from minimoe.layers.moe import MoE
from minimoe.model import MiniMoE
from tests import commands

command, refused = partial(commands.command, bench), partial(commands.refused, bench)
SMALL = "--preset", "micro", "--repeats", 1, "--batch-size", 4, "--sequence-length", 20


@pytest.mark.parametrize("preset", PRESETS)
def test_the_products_are_those_of_every_weight_that_a_token_meets(preset):
    config = PRESETS[preset]
    model = MiniMoE(config, None)
    rows = 8 * config.experts                                             # so that each expert's share is a whole number
    vectors = sum(p.data.size for _, p in model.named_parameters() if p.data.ndim == 1)
    met = model.parameter_counts()["active"] - vectors
    assert sum(n * i * o for n, i, o in bench.products(config, rows)) == rows * met


def test_in_turn_leaves_the_first_round_out(monkeypatch):
    clock = iter([0, 100, 100, 300, 300, 301, 301, 303, 303, 306, 306, 310])
    monkeypatch.setattr(bench.time, "perf_counter", lambda: next(clock))
    calls = []
    assert bench.in_turn({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 2) == {"a": 2, "b": 3}
    assert calls == ["a", "b"] * 3


def test_the_stopwatch_times_layers_and_goes_away():
    whole = MoE.forward
    model = MiniMoE(PRESETS["micro"], np.random.default_rng(0))
    ids = np.zeros((2, 9), int)
    with bench.stopwatch() as seconds:
        logits, saved = model.forward(ids)
        model.backward(logits, saved, model.zero_grads())
    assert len(seconds) == 2 * len(bench.KINDS) and all(value > 0 for value in seconds.values())
    assert MoE.forward is whole


def test_the_figures_agree_with_each_other(tmp_path, monkeypatch, capsys):
    assert command(monkeypatch, *SMALL, "--json", tmp_path / "bench.json") == 0
    figures, text = json.loads((tmp_path / "bench.json").read_text()), capsys.readouterr().out
    seconds, training = figures["training"]["seconds"], figures["training"]
    assert training["step / products"] == seconds["step"] / seconds["products"]
    assert training["tokens/s"] == 80 / seconds["step"] and f"{training['tokens/s']:,.0f} tokens/s" in text
    assert seconds["gradients"] < seconds["step"] and 0 < seconds["MoE.backward"] < seconds["step"]
    for batch, rows in ("batch 1", 1), ("batch 64", 64):
        decoding = figures["decoding"][batch]
        assert decoding["step / limit"] == decoding["seconds"] / decoding["limit"]
        assert decoding["tokens/s"] == rows / decoding["seconds"] > 0
    assert 0.01 < figures["memory"]["pretrain"] < 1 and figures["verdicts/s"] > 100
    assert figures["machine"]["numpy"] == np.__version__ and figures["settings"]["preset"] == "micro"


def test_length_shows_how_cost_grows(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench, "LENGTHS", (16, 32, 64))
    monkeypatch.setattr(bench, "LONGEST_SPARSE", 32)
    assert command(monkeypatch, "--length", *SMALL, "--json", tmp_path / "length.json") == 0
    figures = json.loads((tmp_path / "length.json").read_text())["length"]
    assert list(figures) == ["16", "32", "64"] and "sparse" not in figures["64"]
    assert figures["32"]["sparse / 16"] == figures["32"]["sparse"] / figures["16"]["sparse"]
    assert len(capsys.readouterr().out.strip().splitlines()) == 6


def test_a_group_is_timed_from_a_checkpoint(tmp_path):
    MiniMoE(PRESETS["micro"], np.random.default_rng(0)).save_pretrained(tmp_path)
    figures = bench.group(tmp_path, 1)
    assert 0 < figures["sampling_seconds"] < figures["seconds"] and figures["verifying_seconds"] > 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["--sequence-length", 193], "--sequence-length"), (["--preset", "huge"], "--preset"), (["--repeats", 0], "--repeats"),
     (["--against", "jax"], "--against"), (["--checkpoint", "nowhere", *SMALL], "nowhere")],
)
def test_what_cannot_be_done_is_one_line(tmp_path, monkeypatch, capsys, arguments, says):
    monkeypatch.chdir(tmp_path)
    assert says in refused(monkeypatch, capsys, *arguments)


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="PyTorch is installed")
def test_without_pytorch_it_says_what_to_install(monkeypatch, capsys):
    assert ".[bench]" in refused(monkeypatch, capsys, "--against", "torch")
