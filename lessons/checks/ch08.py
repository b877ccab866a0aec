"""The exercises of chapter 8, the balance of loads."""

from collections.abc import Callable

import numpy as np

from lessons.grading import Exercise, Wrong, compare
from minimoe.layers.softmax import softmax, softmax_backward
from minimoe.training.losses import load_balance


def check_below_one(answer: Callable) -> None:
    given = np.asarray(answer(), np.float64)
    if given.ndim != 2 or given.shape[1] != 2 or not 1 <= len(given) <= 1000:
        raise Wrong(f"expected (N,2) with N from 1 to 1000, got the shape {given.shape}")
    if not np.isfinite(given).all() or (given < 0).any() or np.abs(given.sum(axis=1) - 1).max() > 1e-9:
        raise Wrong("each row is two numbers from 0 to 1 that sum to 1")
    counts = np.bincount(given.argmax(axis=1), minlength=2)
    loss, _ = load_balance(given, counts)
    share, mean = counts / counts.sum(), given.mean(axis=0)
    told = f"f = ({share[0]:.3f}, {share[1]:.3f}), P = ({mean[0]:.3f}, {mean[1]:.3f}), the loss {loss:.4f}"
    if counts[0] == counts[1]:
        raise Wrong(f"the load is even, and then the loss is always 1: {told}")
    if loss >= 0.89:
        raise Wrong(f"not under 0.89: {told}")


def check_balance_gradient(answer: Callable) -> None:
    rng = np.random.default_rng(0)
    for N, E, k in (9, 5, 2), (4, 8, 3), (6, 3, 1):
        logits = 2 * rng.standard_normal((N, E))
        logits[0] += 800                                                  # a softmax must not overflow
        counts = np.bincount(np.argsort(-logits, axis=1)[:, :k].reshape(-1), minlength=E)
        probs = softmax(logits)
        _, dprobs = load_balance(probs, counts)
        right = softmax_backward(dprobs, probs)
        kept = logits.copy(), counts.copy()
        with np.errstate(all="ignore"):
            given = answer(logits, counts)
        if not np.array_equal(logits, kept[0]) or not np.array_equal(counts, kept[1]):
            raise Wrong("an argument was changed")
        if np.shape(given) == right.shape and np.isfinite(given).all():
            usual = {
                "this is the gradient of the probabilities; the softmax is between them and the scores": dprobs,
                "the E of the loss is missing": right / E,
                "P is a mean over rows: a 1/N is missing": right * N,
                "f is a share of all choices, k for each row, not of the rows": right * k,
                "the sum over the row is missing: raising all its scores alike changes nothing": probs * dprobs,
                "the sign is turned": -right,
                "f and P have changed places": softmax_backward(np.broadcast_to(probs.mean(axis=0) * E / N, probs.shape), probs),
            }
            for what, wrong in usual.items():
                if np.allclose(given, wrong) and not np.allclose(wrong, right):
                    raise Wrong(what)
        compare(f"for N, E, k = {N}, {E}, {k}", given, right)


def biased(logits: np.ndarray, k: int, rate: float, steps: int, sign: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    E = logits.shape[1]
    bias = np.zeros(E)
    for step in range(steps + 1):
        chosen = np.array([sorted(range(E), key=lambda e: (-row[e], e))[:k] for row in logits + bias])
        if step < steps:
            counts = np.array([(chosen == e).sum() for e in range(E)])
            bias = bias + sign * rate * np.sign(counts.mean() - counts)
    return bias, chosen, softmax(np.take_along_axis(logits, chosen, axis=1))


def check_balance_by_bias(answer: Callable) -> None:
    for seed, (N, E, k, rate, steps) in enumerate([(40, 8, 2, 0.25, 30), (30, 5, 3, 0.5, 25), (24, 4, 1, 0.125, 20)]):
        rng = np.random.default_rng(seed)
        logits = rng.standard_normal((N, E))
        logits[:, :k] += 4                                                # everybody goes to the first k
        kept = logits.copy()
        given = answer(logits, k, rate, steps)
        if not np.array_equal(logits, kept):
            raise Wrong("logits was changed")
        if not isinstance(given, tuple) or len(given) != 3:
            raise Wrong("expected a tuple (bias, chosen, weights)")
        right, turned = biased(logits, k, rate, steps), biased(logits, k, rate, steps, sign=-1)
        if np.shape(given[0]) == (E,) and np.allclose(given[0], turned[0]):
            raise Wrong("the bias moves the wrong way: the crowded experts win even more")
        for moves, how in (steps + 1, "often; choose once more, without moving it"), (steps - 1, "seldom; `steps` moves, and one choice more"):
            other = biased(logits, k, rate, moves)[0]
            if np.shape(given[0]) == (E,) and np.allclose(given[0], other) and not np.allclose(right[0], other):
                raise Wrong(f"bias: off by {np.abs(given[0] - right[0]).max():.2g}, as if it had moved once too {how}")
        compare("bias", given[0], right[0])
        if np.shape(given[1]) == right[1].shape and np.array_equal(np.sort(given[1]), np.sort(right[1])) and not np.array_equal(given[1], right[1]):
            raise Wrong("chosen: the right experts in another order than by score + bias")
        compare("chosen", given[1], right[1])
        if np.shape(given[2]) == right[2].shape and np.allclose(given[2], softmax(np.take_along_axis(logits + right[0], right[1], axis=1))) and k > 1:
            raise Wrong("the weights are those of score + bias; they should be of the scores alone")
        compare("weights", given[2], right[2])


EXERCISES = [
    Exercise("below_one", 15, check_below_one,
             "f counts rows, P adds probabilities. Let rows that go to the first expert hardly prefer it, and let the others be very sure."),
    Exercise("balance_gradient", 10, check_balance_gradient,
             "E f_i / N is the gradient of each probability. The softmax's backward takes it to the scores; then look what the formula says."),
    Exercise("balance_by_bias", 20, check_balance_by_bias,
             "np.sign(counts.mean() - counts) is the direction, and np.bincount needs minlength. Take the scores of the chosen from logits."),
]
