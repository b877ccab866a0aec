"""The exercises of chapter 1, when a backward is right."""

from collections.abc import Callable, Iterator

import numpy as np

from lessons.grading import Exercise, Wrong, compare
from lessons.mutants import MUTANTS, planted
from minimoe.gradcheck import randomize
from minimoe.layers.experts import Expert
from minimoe.layers.layer import Layer
from minimoe.layers.linear import Linear
from minimoe.layers.rmsnorm import RMSNorm
from minimoe.layers.rope import Rope


def examples() -> dict[str, tuple[Layer, np.ndarray]]:
    """Return small layers with float64 inputs, by the names of their checks."""
    rng = np.random.default_rng(5)
    layers = {
        "linear": (Linear(3, 4, rng, np.float64), (2, 3, 3)),
        "rmsnorm": (RMSNorm(5, np.float64), (2, 3, 5)),
        "rope": (Rope(4), (2, 3, 1, 4)),
        "expert": (Expert(3, 4, rng, np.float64), (4, 3)),
    }
    return {name: (randomize(layer, rng), rng.standard_normal(shape)) for name, (layer, shape) in layers.items()}


def scaled() -> Iterator[tuple[str, Layer, np.ndarray]]:
    """Yield right layers whose gradients are large or small."""
    for scale in (1e5, 1e-5):
        layer, x = examples()["linear"]
        layer.weight.data *= scale
        yield f"a right Linear layer whose weight is of size {scale:g}", layer, x


class Scaled(Layer):
    """y = scale * x, whose gradient is small, and 3% too large."""

    def __init__(self, scale: float):
        self.scale = scale

    def forward(self, x: np.ndarray) -> tuple[np.ndarray, None]:
        return self.scale * x, None

    def backward(self, dy: np.ndarray, saved: None, grads: dict) -> np.ndarray:
        return 1.03 * self.scale * dy


class Rolled(Linear):
    """Hands every row the gradient of the row before it, on the way to the weight."""

    def backward(self, dy: np.ndarray, saved: np.ndarray, grads: dict) -> np.ndarray:
        drows = dy.reshape(-1, dy.shape[-1])
        grads[self.weight] += np.roll(drows, 1, axis=0).T @ saved
        return (drows @ self.weight.data).reshape(*dy.shape[:-1], -1)


def check_is_right(is_right: Callable[[Layer, np.ndarray], bool]) -> None:
    def ask(what: str, layer: Layer, x: np.ndarray) -> bool:
        before = [x.copy(), *(p.data.copy() for _, p in layer.named_parameters())]
        said = is_right(layer, x)
        if not isinstance(said, (bool, np.bool_)):
            raise Wrong(f"expected True or False, got {said!r}")
        if not all(map(np.array_equal, before, [x, *(p.data for _, p in layer.named_parameters())])):
            raise Wrong(f"after looking at {what}, x or a parameter is no longer what it was")
        return bool(said)

    for name, (layer, x) in examples().items():
        if not ask(f"a right {name}", layer, x):
            halve = "; if you went backward twice into the same grads, halve them" * bool(dict(layer.named_parameters()))
            raise Wrong(f"the {name} of minimoe is right, and you say that it is not{halve}")
    for what, layer, x in scaled():
        if not ask(what, layer, x):
            raise Wrong(f"{what}: you say that it is wrong; compare errors with the tensor's largest gradient, "
                        "not with a fixed number nor each with its own, and allow for rounding")
    if ask("y = 1e-6 x", Scaled(1e-6), np.random.default_rng(0).standard_normal((3, 4))):
        raise Wrong("y = 1e-6 * x with a gradient 3% too large: you say that it is right; compare errors with the size of the gradient")
    layer, x = examples()["linear"]
    rolled = Rolled(3, 4, None, np.float64, weight=layer.weight)
    if ask("a Linear layer that mixes up its rows", rolled, x):
        raise Wrong("a Linear layer that hands each row the gradient of another: you let it pass; is your upstream gradient the same in all rows?")
    missed = []
    for mutant in MUTANTS:
        if mutant.layer in examples():
            layer, x = examples()[mutant.layer]
            with planted(mutant):
                if ask(mutant.name, layer, x):
                    missed.append(mutant)
    if missed:
        others = f", and {len(missed) - 1} other faults" * (len(missed) > 1)
        raise Wrong(f"you let {missed[0].name} pass{others}. {missed[0].why}")


def check_best_step(best_step: Callable[[float, float, float], float]) -> None:
    for size, third, eps in (1.0, 1.0, 2.2e-16), (50.0, 0.3, 2.2e-16), (2.0, 700.0, 1.2e-7):
        right, answer = (3 * eps * size / third) ** (1 / 3), best_step(size, third, eps)
        what = f"best_step({size}, {third}, {eps})"
        for wrong, why in (
            ((eps * size / third) ** (1 / 3), "the 3 is missing: differentiate both terms with respect to h"),
            (eps ** (1 / 3), "size and third count too"),
            ((3 * eps) ** (1 / 3), "size and third count too"),
            ((eps * size / third) ** 0.5, "that belongs to a one-sided difference, whose error grows like h and not like h^2"),
            (eps**0.5, "that belongs to a one-sided difference, whose error grows like h and not like h^2"),
            ((6 * eps * size / third) ** (1 / 3), "where the two terms are equal their sum is not yet smallest"),
        ):
            if np.isclose(answer, wrong, rtol=1e-9) and not np.isclose(wrong, right, rtol=1e-9):
                raise Wrong(f"{what} is {answer:.3g} and should be {right:.3g}: {why}")
        compare(what, answer, right)


def check_blind_upstream(blind_upstream: Callable[[np.ndarray, int], np.ndarray]) -> None:
    for shape, outputs in ((4, 3), 2), ((7, 5), 6):
        x = np.random.default_rng(0).standard_normal(shape)
        r = np.asarray(blind_upstream(x.copy(), outputs), dtype=float)
        if r.shape != (len(x), outputs):
            raise Wrong(f"the shape of r is {r.shape}; it should be {len(x), outputs}")
        if not np.isfinite(r).all() or (np.abs(r).max(axis=0) < 1e-3).any():
            raise Wrong("a column of r is zero or next to it, or not finite: that output is not looked at")
        right, wrong = r.T @ x, np.roll(r, 1, axis=0).T @ x
        off = np.abs(right - wrong).max() / max(np.abs(r).max() * np.abs(x).max(), 1e-300)
        if off > 1e-9:
            raise Wrong(f"a check with this r sees the fault: right and wrong gradient differ by {np.abs(right - wrong).max():.2g}")


EXERCISES = [
    Exercise("is_right", 25, check_is_right,
             "Draw r at random, go backward twice into the same grads, and halve what they hold. Then nudge every number of x "
             "and of every parameter in place, up and down by 1e-5, and put it back. Compare the largest difference of a tensor "
             "with its largest gradient, and allow for rounding: 10 * eps * sum(|r * y|) / h."),
    Exercise("best_step", 10, check_best_step,
             "Where a sum of a falling and a rising term is smallest, its derivative with respect to h is 0. Solve for h**3."),
    Exercise("blind_upstream", 10, check_blind_upstream,
             "np.roll exchanges rows. Which matrices do not change when their rows are exchanged?"),
]
