"""The exercises of chapter 3: RMSNorm, where a check of it is blind, SwiGLU, and an expert that multiplies."""

import warnings
from collections.abc import Callable

import numpy as np

from lessons.grading import Exercise, Wrong, compare
from lessons.mutants import MUTANTS, planted
from minimoe.layers.experts import sigmoid, swiglu
from minimoe.layers.experts import swiglu_backward as layer_backward
from minimoe.layers.layer import Parameter
from minimoe.layers.rmsnorm import RMSNorm

HIDDEN = ["gain-dropped", "along-dropped", "along-summed", "along-without-gain", "scale-dropped", "gain-from-input"]


def same(answer: object, other: np.ndarray) -> bool:
    return np.shape(answer) == other.shape and np.allclose(answer, other, rtol=1e-7, atol=1e-12)


def slope(f: Callable, x: np.ndarray, h: float = 1e-5) -> np.ndarray:
    """Return the gradient of f at x by centred differences."""
    found = np.empty_like(x)
    for place in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[place] = h
        found[place] = (f(x + step) - f(x - step)) / (2 * h)
    return found


def unchanged(function: Callable, arguments: list, names: list[str], wanted: int) -> tuple:
    """Call, and raise `Wrong` if an argument was changed or the answer is not so many arrays."""
    before = [np.copy(argument) for argument in arguments]
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        try:
            answer = function(*arguments)
        except RuntimeWarning as warning:
            raise Wrong(f"NumPy warns: {warning}") from None
    for name, argument, copy in zip(names, arguments, before):
        if not np.array_equal(argument, copy):
            raise Wrong(f"{name} belongs to the caller and was changed")
    if not isinstance(answer, tuple) or len(answer) != wanted:
        raise Wrong(f"expected a tuple of {wanted} arrays, got {type(answer).__name__}")
    return answer


def check_rmsnorm_backward(function: Callable) -> None:
    rng = np.random.default_rng(3)
    for shape, epsilon in [((3, 5), 1.0), ((5, 4), 1e-6), ((2, 3, 7), 1e-6), ((6,), 1e-6)]:
        D = shape[-1]
        x, dy, gain = 2 * rng.standard_normal(shape), rng.standard_normal(shape), 1 + rng.uniform(-0.5, 0.5, D)

        def forward(x: np.ndarray, gain: np.ndarray) -> float:
            return np.sum(dy * x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + epsilon) * gain)

        right_x, right_gain = slope(lambda x: forward(x, gain), x), slope(lambda gain: forward(x, gain), gain)
        dx, dgain = unchanged(function, [dy, x, gain, epsilon], ["dy", "x", "gain", "epsilon"], 2)

        s = 1 / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + epsilon)
        unit, dunit = x * s, dy * gain
        along = np.mean(dunit * unit, axis=-1, keepdims=True)
        s0 = 1 / np.sqrt(np.mean(x**2, axis=-1, keepdims=True))           # without epsilon
        along0 = np.mean(dunit * x * s0, axis=-1, keepdims=True)
        named = {
            "dx: epsilon is missing": (dunit - x * s0 * along0) * s0,
            "dx: the scale is taken for a constant; it falls as x grows": dunit * s,
            "dx: the sum over the row is not divided by D": (dunit - unit * along * D) * s,
            "dx: the gain is missing": (dy - unit * np.mean(dy * unit, axis=-1, keepdims=True)) * s,
            "dx: the gain is missing in the part along the row": (dunit - unit * np.mean(dy * unit, axis=-1, keepdims=True)) * s,
            "dx: the scale is missing": dunit - unit * along,
            "dx: the part along the row is added; it should be taken away": (dunit + unit * along) * s,
            "dx: all of what lies along the row is gone, as if epsilon were 0":
                (dunit - unit * np.sum(dunit * unit, axis=-1, keepdims=True) / np.sum(unit**2, axis=-1, keepdims=True)) * s,
        }
        for message, wrong in named.items():
            if same(dx, wrong) and not np.allclose(wrong, right_x, atol=1e-5):
                raise Wrong(message)
        compare(f"dx for x of shape {shape}, epsilon {epsilon:g}", dx, right_x, 1e-7)
        if same(dgain, dy * unit) and len(shape) > 1:
            raise Wrong("dgain has a row for each row of x; one gain serves all rows, so their gradients add up")
        if same(dgain, np.sum(dy * x, axis=tuple(range(len(shape) - 1)))):
            raise Wrong("dgain is made of x; the gain multiplies the normalised row")
        if len(shape) > 1 and same(dgain, np.mean(dy * unit, axis=tuple(range(len(shape) - 1)))):
            raise Wrong("dgain is the mean over the rows; it should be their sum")
        compare(f"dgain for x of shape {shape}", dgain, right_gain, 1e-7)


def check_blind_spot(function: Callable) -> None:
    answer = function()
    if not isinstance(answer, tuple) or len(answer) != 3:
        raise Wrong(f"expected (x, gain, r), got {type(answer).__name__}")
    x, gain, r = (np.array(one, dtype=np.float64) for one in answer)
    if x.ndim != 2 or x.shape[0] < 2 or x.shape[1] < 4 or r.shape != x.shape or gain.shape != x.shape[1:]:
        raise Wrong(f"the shapes are {x.shape}, {gain.shape}, {r.shape}; they should be (N,D), (D,), (N,D) with N >= 2 and D >= 4")
    if not all(np.isfinite(one).all() for one in (x, gain, r)):
        raise Wrong("not all of it is finite")
    if not x.all():
        raise Wrong("an entry of x is 0")
    layer = RMSNorm(x.shape[1], np.float64)
    layer.weight = Parameter(gain)

    def gradients() -> tuple[np.ndarray, np.ndarray]:
        y, saved = layer.forward(x)
        grads = layer.zero_grads()
        return layer.backward(r, saved, grads), grads[layer.weight]

    right = gradients()
    for name, gradient in zip(("dx", "dgain"), right):
        if np.abs(gradient).max() < 0.1:
            raise Wrong(f"{name} is empty here: its largest number is {np.abs(gradient).max():.2g}. Where nothing is to be seen, hiding is no art")
    mutants = {mutant.name: mutant for mutant in MUTANTS}
    seen = []
    for fault in HIDDEN:
        with planted(mutants[f"rmsnorm-{fault}"]):
            broken = gradients()
        off = max(np.abs(one - other).max() / np.abs(other).max() for one, other in zip(broken, right))
        if off > 1e-5:
            seen.append(f"{fault} (by {off:.2g})")
    if seen:
        raise Wrong(f"{len(seen)} of {len(HIDDEN)} are still seen: {', '.join(seen)}")


def check_swiglu_backward(function: Callable) -> None:
    rng = np.random.default_rng(4)
    for N, D, F, size in [(5, 4, 3, 1), (6, 3, 3, 1), (1, 2, 7, 2), (4, 3, 5, 600)]:
        x, dy, G, V, W = (rng.standard_normal(shape) for shape in [(N, D), (N, D), (F, D), (F, D), (D, F)])
        G = size * G
        what = " with gates below -1000" if size > 100 else ""
        up, dup, dW = np.concatenate([G, V]), np.zeros((2 * F, D)), np.zeros((D, F))
        _, pre = swiglu(x, up, W)
        dx = layer_backward(dy, x, pre, up, W, dup, dW)
        right = {"dx": dx, "dG": dup[:F], "dV": dup[F:], "dW": dW}
        gate, value, dhidden = x @ G.T, x @ V.T, dy @ W
        s = sigmoid(gate)
        bend = s + gate * s * (1 - s)
        dgate, dvalue = dhidden * value * bend, dhidden * gate * s
        answer = dict(zip(right, unchanged(function, [dy, x, G, V, W], ["dy", "x", "G", "V", "W"], 4)))
        flat = {
            "dV has the sigmoid where silu(gate) belongs": ("dV", (dhidden * s).T @ x),
            "dG lacks the value: each factor's gradient has the other factor in it": ("dG", (dhidden * bend).T @ x),
            "dG takes the sigmoid for a constant; silu has the gate twice": ("dG", (dhidden * value * s).T @ x),
            "dG has sigma' without the gate in the second term of silu'": ("dG", (dhidden * value * (s + s * (1 - s))).T @ x),
            "dG stops before silu: it is the gradient of silu(gate)": ("dG", (dhidden * value).T @ x),
            "dG and dV are swapped": ("dG", right["dV"]),
            "dW lacks the sigmoid: hidden is silu(gate) * value": ("dW", dy.T @ (gate * value)),
            "dx has the gate's path alone; the value reads x too": ("dx", dgate @ G),
            "dx has the value's path alone; the gate reads x too": ("dx", dvalue @ V),
        }
        for message, (name, wrong) in flat.items():
            if same(answer[name], wrong) and not np.allclose(wrong, right[name]):
                raise Wrong(message)
        for name in right:
            compare(f"{name}, N = {N}, D = {D}, F = {F}{what}", answer[name], right[name])


def check_product(function: Callable) -> None:
    answer = function()
    if not isinstance(answer, tuple) or [np.shape(one) for one in answer] != [(4, 2), (2, 2)]:
        shapes = [np.shape(one) for one in answer] if isinstance(answer, tuple) else type(answer).__name__
        raise Wrong(f"expected up (4,2) and down (2,2), got {shapes}")
    up, down = (np.array(one, dtype=np.float64) for one in answer)
    rng = np.random.default_rng(0)
    x = np.concatenate([[[2.0, 3.0], [-2.0, 3.0], [2.0, -3.0], [-2.0, -3.0]], rng.standard_normal((20, 2)), 50 * rng.standard_normal((20, 2))])
    y, _ = swiglu(x, up, down)
    wanted = x[:, 0] * x[:, 1]
    for row, (one, other), right in zip(x, y, wanted):
        if not abs(one - right) <= 1e-9 * max(1.0, abs(right)):
            half = " (half of it: one unit is not enough)" if abs(one - right / 2) <= 1e-9 * max(1.0, abs(right)) else ""
            raise Wrong(f"x = ({row[0]:.3g}, {row[1]:.3g}) gives y[0] = {one:.4g}; it should be {right:.4g}{half}")
        if not abs(other) <= 1e-9:
            raise Wrong(f"x = ({row[0]:.3g}, {row[1]:.3g}) gives y[1] = {other:.4g}; it should be 0")


EXERCISES = [
    Exercise("rmsnorm_backward", 15, check_rmsnorm_backward, "unit and dunit first, then the mean of their product over the row."),
    Exercise("blind_spot", 15, check_blind_spot, "Three of the chapter's places at once. To make r stand at a right angle to a row, take away what lies along it."),
    Exercise("swiglu_backward", 20, check_swiglu_backward, "Go up from y, one line of the forward at a time. For the sigmoid of -1000, see how the source writes it."),
    Exercise("product", 15, check_product, "What is silu(a) - silu(-a)?"),
]
