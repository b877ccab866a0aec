"""The exercises of chapter 7, routing."""

from collections.abc import Callable
from contextlib import nullcontext

import numpy as np

from lessons.grading import Exercise, Wrong, compare
from lessons.mutants import MUTANTS, planted
from minimoe.gradcheck import randomize
from minimoe.layers.moe import MoE
from minimoe.layers.softmax import softmax

# How each router of `which_routers_learn` weighs: chosen scores and all scores -> weights of the chosen
ROUTERS: list[tuple[int, Callable[[np.ndarray, np.ndarray], np.ndarray]]] = [
    (1, lambda chosen, scores: softmax(chosen)),
    (1, lambda chosen, scores: np.exp(chosen) / np.exp(scores).sum()),
    (2, lambda chosen, scores: softmax(chosen)),
    (1, lambda chosen, scores: sigmoid(chosen) / sigmoid(chosen).sum()),
    (1, lambda chosen, scores: sigmoid(chosen)),
    (2, lambda chosen, scores: np.full(2, 0.5)),
]
FAULTS = {"none": None, "shared": "moe-shared-expert-path", "experts": "moe-experts-path", "router": "moe-router-path",
          "weights": "moe-router-not-taught"}


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def learns(k: int, weigh: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> bool:
    """Whether nudging the scores, which are linear in W, moves sum(r * y)."""
    rng = np.random.default_rng(0)
    scores, said = rng.standard_normal(8), rng.standard_normal(8)         # said: r . expert(x)
    chosen = np.argsort(-scores)[:k]

    def f(scores: np.ndarray) -> float:
        return float(weigh(scores[chosen], scores) @ said[chosen])

    return any(abs(f(scores + step) - f(scores - step)) > 1e-9 for step in 1e-5 * np.eye(8))


def check_which_routers_learn(answer: Callable) -> None:
    given, right = answer(), [learns(k, weigh) for k, weigh in ROUTERS]
    if not isinstance(given, (list, tuple, np.ndarray)) or len(given) != len(right):
        raise Wrong(f"expected six answers, got {given!r}")
    if not all(isinstance(one, (bool, np.bool_)) for one in given):
        raise Wrong(f"each answer is True or False; got {given!r}")
    off = sum(bool(mine) != yours for mine, yours in zip(given, right))
    if off:
        raise Wrong(f"{off} of the six {'is' if off == 1 else 'are'} wrong; which, is not told")


def check_logits_gradient(answer: Callable) -> None:
    rng = np.random.default_rng(1)
    for N, k, D, E in (7, 2, 5, 8), (6, 3, 4, 5), (4, 1, 3, 6), (5, 4, 3, 4):
        chosen = np.array([rng.permutation(E)[:k] for _ in range(N)])
        chosen[-1] = chosen[0]                                            # two rows with the same experts
        scores = rng.standard_normal((N, E))
        weights = softmax(np.take_along_axis(scores, chosen, axis=1))
        outputs, dy = rng.standard_normal((N, k, D)), rng.standard_normal((N, D))
        dweights = (dy[:, None] * outputs).sum(axis=2)
        dchosen = np.array([w * (dw - w @ dw) for w, dw in zip(weights, dweights)])

        def spread(values: np.ndarray) -> np.ndarray:
            return np.array([[values[n, list(c).index(e)] if e in c else 0.0 for e in range(E)] for n, c in enumerate(chosen)])

        arguments = dy, outputs, weights, chosen
        kept = [array.copy() for array in arguments]
        given = answer(*arguments, E)
        if not all(map(np.array_equal, arguments, kept)):
            raise Wrong("an argument was changed")
        right = spread(dchosen)
        usual = {
            "the sign is turned": -right,
            "each weight is taken to depend on its own score alone": spread(dweights * weights * (1 - weights)),
            "the softmax is left out: these are the gradients of the weights": spread(dweights),
            "the mean over the chosen is missing in dw_j - sum of w_i dw_i": spread(weights * dweights),
            "the outputs are taken as already weighted": spread(np.array([w * (w * dw - w @ (w * dw)) for w, dw in zip(weights, dweights)])),
            "the mean over the chosen is not weighted": spread(weights * (dweights - dweights.mean(axis=1, keepdims=True))),
        }
        for what, wrong in usual.items():
            if np.shape(given) == wrong.shape and not np.allclose(wrong, right) and np.allclose(given, wrong):
                raise Wrong(what)
        if np.shape(given) == right.shape and not np.allclose(given, right) and np.allclose(np.sort(given), np.sort(right)):
            raise Wrong("each row has the right numbers, under the wrong experts")
        where = f"with k = {k} of {E}"
        if k == 1:
            if np.shape(given) != right.shape or not np.all(np.abs(given) < 1e-12):
                raise Wrong(f"{where}: a single weight is always 1, and its score has no gradient")
            continue
        compare(where, given, right)


def check_cut_path(answer: Callable) -> None:
    faults = {mutant.name: mutant for mutant in MUTANTS}
    for seed, (D, E, F, k) in enumerate([(6, 5, 4, 2), (5, 4, 7, 3)]):
        rng = np.random.default_rng(seed)
        moe = randomize(MoE(D, E, F, k, rng, np.float64), rng)
        moe.shared.down.weight.data *= (1, 30)[seed]                      # a path may be long ...
        moe.router.weight.data *= (0.1, 1)[seed]                          # ... or short
        x, dy = rng.standard_normal((2, 3, 4, D))
        for right, name in FAULTS.items():
            kept = x.copy(), dy.copy()
            with planted(faults[name]) if name else nullcontext():
                given = answer(moe, x, dy)
            if not np.array_equal(x, kept[0]) or not np.array_equal(dy, kept[1]):
                raise Wrong("x or dy was changed")
            if given not in FAULTS:
                raise Wrong(f"expected one of {', '.join(FAULTS)}, got {given!r}")
            if given != right:
                what = "nothing is missing" if right == "none" else f'"{right}" is what is missing'
                raise Wrong(f'{what}, and it says "{given}"')


EXERCISES = [
    Exercise("which_routers_learn", 10, check_which_routers_learn,
             "Ask of each: if all chosen scores rise a little, or one of them does, does any weight change?"),
    Exercise("logits_gradient", 15, check_logits_gradient,
             "dw_j is a product with the output as the expert gave it. Then dm_j. Last, np.put_along_axis into zeros."),
    Exercise("cut_path", 20, check_cut_path,
             "The parts are whole: walk each of the three paths by itself, and compare their sum with what backward returned."),
]
