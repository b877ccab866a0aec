import json
import re
import subprocess
import sys

import numpy as np
import pytest

from minimoe.errors import InputError
from minimoe.gradcheck import cases, check, projection, randomize
from minimoe.layers.hyper_connection import Write
from minimoe.layers.layer import Layer, Parameter
from minimoe.layers.linear import Linear

DETAIL = re.compile(r"at (\(.*\)|direction): analytic (\S+), numeric (\S+), h = 1e-05")


class Faulty(Layer):
    """y = softmax(x) * weight, whose gradients pass through a fault on their way out."""

    def __init__(self, fault=lambda g: g, tensor="input"):
        self.weight = Parameter(np.random.default_rng(0).standard_normal(7))
        self.fault, self.tensor = fault, tensor

    def forward(self, x):
        p = np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True)
        return p * self.weight.data, p

    def backward(self, dy, saved, grads):
        p, dp = saved, dy * self.weight.data
        gradients = {"weight": (dy * p).sum(axis=(0, 1)), "input": p * (dp - np.sum(p * dp, axis=-1, keepdims=True))}
        if self.tensor == "dropped term":
            gradients["input"] = p * dp
        elif self.tensor:
            gradients[self.tensor] = self.fault(gradients[self.tensor])
        grads[self.weight] += gradients["weight"]
        return gradients["input"]


def draw(*shape):
    return np.random.default_rng(1).standard_normal(shape)


def spoil(value, where=-1):
    """A fault of one coordinate, which is not always among those drawn."""

    def fault(gradient):
        gradient = gradient.copy()
        gradient.flat[where] = value
        return gradient

    return fault


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", [name for name in cases() if not name.startswith("model")])
def test_every_layer_and_loss_passes(name, seed):
    report = cases(seed)[name]()
    assert report.passed and all(row.coordinates for row in report.rows), report


def test_a_right_gradient_passes():
    report = check(Faulty(), draw(2, 3, 7))
    assert report.passed and [row.tensor for row in report.rows] == ["input", "weight"]
    assert [row.verdict for row in report.rows] == ["ok", "ok"] and not any(row.detail for row in report.rows)
    assert all(0 < row.error < 1e-7 and row.coordinates == 6 for row in report.rows)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("tensor", ["input", "weight"])
@pytest.mark.parametrize(
    "fault",
    [lambda g: 1.03 * g, lambda g: -g, lambda g: 0 * g, lambda g: np.nan * g, spoil(0), spoil(np.nan)],
    ids=["factor", "sign", "zero", "NaN", "one coordinate is zero", "one coordinate is NaN"],
)
def test_a_wrong_gradient_fails_in_its_own_row(fault, tensor, seed):
    x = draw(2, 3, 7)
    report = check(Faulty(fault, tensor), x, seed=seed)
    assert not report.passed and [row.tensor for row in report.rows if row.verdict != "ok"] == [tensor]
    [row] = [row for row in report.rows if row.tensor == tensor]
    assert DETAIL.fullmatch(row.detail) and row.detail in str(report) and "FAILED" in str(report)


def test_a_softmax_without_its_sum_fails():
    """Under an upstream gradient of ones it would pass: everything would be zero."""
    report = check(Faulty(tensor="dropped term"), draw(2, 3, 7))
    assert [row.verdict for row in report.rows] == ["FAILED", "ok"]


class Spoiling(Layer):
    """y = x * weight, whose backward is right the first time."""

    def __init__(self, fault):
        self.weight, self.fault = Parameter(draw(4)), fault

    def forward(self, x):
        return x * self.weight.data, x.copy()

    def backward(self, dy, saved, grads):
        x = saved
        if self.fault == "= for +=":
            grads[self.weight] = (dy * x).sum(axis=0)
        else:
            grads[self.weight] += (dy * x).sum(axis=0)
        if self.fault == "writes into saved":
            x *= dy
        return dy * self.weight.data


@pytest.mark.parametrize("fault", ["= for +=", "writes into saved", None])
def test_backward_must_be_right_the_second_time_too(fault):
    assert [row.verdict for row in check(Spoiling(fault), draw(3, 4)).rows] == ["ok", "FAILED" if fault else "ok"]


def test_a_failure_names_coordinate_analytic_numeric_and_h():
    x, r = draw(2, 3, 7), np.random.default_rng(2).standard_normal((2, 3, 7))
    layer = Faulty(lambda g: g + (np.arange(42).reshape(2, 3, 7) == 40))
    row = check(layer, x, objective=projection(r), coordinates=42).rows[0]
    where, analytic, numeric = DETAIL.fullmatch(row.detail).groups()
    _, saved = layer.forward(x)
    expected = layer.backward(r, saved, layer.zero_grads())[1, 2, 5]
    assert where == "(1, 2, 5)" and float(analytic) == pytest.approx(expected, rel=1e-6)
    assert float(numeric) == pytest.approx(expected - 1, abs=1e-6)


def test_what_was_checked_is_unchanged():
    for fault in lambda g: g, lambda g: -g:
        layer, x = Faulty(fault), draw(2, 3, 7)
        data = layer.weight.data
        before = x.tobytes(), data.tobytes()
        x.flags.writeable = False
        check(layer, x)
        assert (x.tobytes(), data.tobytes()) == before and layer.weight.data is data


def test_parameters_are_put_back_when_a_probe_raises():
    class Raising(Faulty):
        calls = 0

        def forward(self, x):
            Raising.calls += 1
            if Raising.calls == 20:                                       # of 2 tensors, in the second
                raise ZeroDivisionError
            return super().forward(x)

    layer = Raising()
    before = layer.weight.data.tobytes()
    with pytest.raises(ZeroDivisionError):
        check(layer, draw(2, 3, 7))
    assert layer.weight.data.tobytes() == before


def test_inputs_that_share_memory_are_probed_apart():
    streams = draw(3, 2, 5, 4)
    report = check(Write(Parameter(draw(3))), streams, streams[0])
    assert report.passed and [row.tensor for row in report.rows] == ["input 0", "input 1", "weight"]


@pytest.mark.parametrize("single", ["layer", "input"])
def test_float32_is_refused(single):
    layer = Linear(4, 5, np.random.default_rng(0), np.float32 if single == "layer" else np.float64)
    with pytest.raises(InputError, match="need float64"):
        check(layer, draw(3, 4).astype(np.float32 if single == "input" else np.float64))


class Jump(Layer):
    """y = x, and 1 more above 0."""

    def __init__(self, recorded=True):
        self.recorded = recorded

    def forward(self, x):
        return x + (x > 0), {"above": [x > 0] if self.recorded else []}

    def backward(self, dy, saved, grads):
        return dy


def test_a_probe_that_changes_a_choice_is_drawn_again():
    x = np.where(np.arange(40) % 2, 1e-7, draw(40))                       # every other coordinate sits at the jump
    report = check(Jump(), x, coordinates=10)
    assert report.rows[0].coordinates == 10 and report.passed, report
    assert not check(Jump(recorded=False), x, coordinates=10).passed


def test_no_probe_left_is_a_failure():
    [row] = check(Jump(), np.full(5, 1e-7)).rows
    assert row.verdict == "FAILED" and "every probe" in row.detail and row.coordinates == 0


def test_nan_at_one_end_of_a_probe_is_a_failure():
    class Hole(Jump):
        def forward(self, x):
            return np.where(x < 0, np.nan, x), None

    x = np.ones(5)
    x[3] = 1e-7
    [row] = check(Hole(), x, objective=projection(np.ones(5)), coordinates=5).rows
    assert row.verdict == "FAILED" and row.detail == "at (3,): analytic 1, numeric nan, h = 1e-05"


class Scaled(Layer):
    """y = x * weight, or x alone when the weight is `unused`."""

    def __init__(self, scale=1.0, claimed=0.0, unused=True):
        self.weight = Parameter(np.ones(4))
        self.scale, self.claimed, self.unused = scale, claimed, unused

    def forward(self, x):
        return self.scale * x * (1 if self.unused else self.weight.data), x

    def backward(self, dy, saved, grads):
        grads[self.weight] += self.claimed if self.unused else self.scale * (dy * saved).sum(axis=0)
        return self.scale * dy * (1 if self.unused else self.weight.data)


def test_a_gradient_that_shows_nothing_fails_unless_it_is_named():
    report = check(Scaled(), draw(3, 4))
    assert [row.verdict for row in report.rows] == ["ok", "FAILED"] and "shows nothing" in report.rows[1].detail
    report = check(Scaled(), draw(3, 4), zero=["weight"])
    assert report.passed and [row.verdict for row in report.rows] == ["ok", "zero"]
    assert not check(Scaled(scale=1e-6), draw(3, 4), zero=["weight"]).passed     # the input's is too small to be seen


def test_a_named_zero_must_be_zero():
    for layer in Scaled(unused=False), Scaled(claimed=1e-3):
        [_, row] = check(layer, draw(3, 4), zero=["weight"]).rows
        assert row.verdict == "FAILED" and row.detail
    layer = Scaled()
    layer.backward = lambda dy, saved, grads: (grads[layer.weight].__setitem__(3, 1e-7), dy)[1]
    [_, row] = check(layer, draw(3, 4), zero=["weight"], coordinates=1).rows
    assert row.verdict == "FAILED"


def test_randomize_draws_by_the_seed():
    first, second = (randomize(Linear(6, 5, None, np.float64), np.random.default_rng(3)) for _ in range(2))
    assert (first.weight.data == second.weight.data).all() and 0.2 < first.weight.data.std() * 6**0.5 < 2


def command(*arguments):
    return subprocess.run([sys.executable, "-m", "minimoe.gradcheck", *arguments], text=True, capture_output=True)


def test_command_prints_and_writes_the_table(tmp_path):
    done = command("rope", "cross_entropy", "--json", str(tmp_path / "table.json"))
    assert done.returncode == 0 and not done.stderr and "2 of 2 passed" in done.stdout
    first, second = json.loads((tmp_path / "table.json").read_text())
    assert (first["name"], second["name"]) == ("rope", "cross_entropy")
    [row] = first["rows"]
    assert row["tensor"] == "input" and row["verdict"] == "ok" and row["coordinates"] == 6 and row["error"] < 1e-6
    assert re.search(rf"^rope +coordinates .*\n  input +6 +{row['error']:.1e}  ok$", done.stdout, re.MULTILINE)


def test_command_refuses_an_unknown_name():
    done = command("rope", "attention")
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("minimoe.gradcheck: nothing is called 'attention'") and done.stderr.count("\n") == 1


def test_command_fails_when_a_check_fails():
    code = """
import runpy, sys
from minimoe.layers.rope import Rope
Rope.backward = lambda self, dy, saved, grads: dy
sys.argv = ["gradcheck", "rope"]
runpy.run_module("minimoe.gradcheck", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True)
    assert done.returncode == 1 and not done.stderr
    assert "FAILED\n    at " in done.stdout and "0 of 1 passed; failed: rope" in done.stdout
