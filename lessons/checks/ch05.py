"""The exercises of chapter 5, sparse attention."""

from collections.abc import Callable

import numpy as np

from lessons.grading import Exercise, Wrong, compare
from minimoe.layers.softmax import softmax, softmax_backward
from minimoe.layers.sparse_attention import SparseAttention


def select(scores: np.ndarray, top_k: int) -> np.ndarray:
    """Return which of the scores (T,L) the layer keeps."""
    return SparseAttention(2, 1, 2, top_k, None, scores.dtype).select(scores[None, None])[0, 0]


def causal_scores(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    return np.where(np.tri(len(q), dtype=bool), q @ k.T * q.shape[1] ** -0.5, -np.inf)


def refuse(answer: np.ndarray, right: np.ndarray, named: dict[str, np.ndarray]) -> None:
    """Raise `Wrong` with the name of the wrong result that `answer` is."""
    for message, wrong in named.items():
        if np.shape(answer) == wrong.shape and not np.allclose(wrong, right) and np.allclose(answer, wrong):
            raise Wrong(message)


def check_attention_backward(function: Callable) -> None:
    rng = np.random.default_rng(5)
    for T, K, top_k in [(9, 4, 3), (6, 5, 6), (7, 7, 2)]:
        da, q, k, v = rng.standard_normal((4, T, K))
        scores = causal_scores(q, k)
        kept = select(scores, top_k)
        p = softmax(scores, kept)
        arguments = [array.copy() for array in (da, q, k, v, p)]
        answer = function(*arguments)
        if not all(map(np.array_equal, arguments, (da, q, k, v, p))):
            raise Wrong("an argument was changed: they belong to the caller")
        if not isinstance(answer, (tuple, list)) or len(answer) != 3:
            raise Wrong("it should return three arrays: dq, dk, dv")
        dp = da @ v.T
        dz = softmax_backward(dp, p) * K**-0.5
        every = p * (dp - (p * dp).sum(axis=0)) * K**-0.5
        dq, dk, dv = dz @ k, dz.T @ q, p.T @ da
        refuse(answer[2], dv, {
            "dv: a value hears from the queries that read it, so the sum runs over queries: transpose p": p @ da,
            "dv: every kept value got its query's whole gradient; its share is p": kept.T @ da,
        })
        compare("dv", answer[2], dv)
        for name, part, right, other in (("dq", answer[0], dq, k), ("dk", answer[1], dk, q)):
            turn = np.transpose if name == "dk" else np.asarray
            refuse(part, right, {
                f"{name}: the factor 1/sqrt(K) of the scores is missing": right * K**0.5,
                f"{name}: the factor 1/sqrt(K) stands there twice": right * K**-0.5,
                f"{name}: the softmax backward lacks its sum; raising all scores alike must change nothing": turn(p * dp * K**-0.5) @ other,
                f"{name}: the sum of the softmax backward runs over queries; it should run over the keys of one query": turn(every) @ other,
                f"{name}: dscores is the wrong way round: a query has a row, a key a column": turn(dz.T) @ other,
                f"{name}: q and k are swapped": turn(dz) @ (k if name == "dk" else q),
                f"{name}: a sign": -right,
            })
            compare(name, part, right)


def check_flips(function: Callable) -> None:
    rng = np.random.default_rng(6)
    for T, K, top_k, size in [(24, 4, 5, 0.03), (40, 6, 8, 0.01), (40, 6, 8, 0.3), (8, 4, 8, 1.0), (12, 2, 1, 0.5), (30, 4, 3, 0.0)]:
        q, k, step = rng.standard_normal((3, T, K))
        step = step * size
        ends = [select(causal_scores(q + sign * step, k), top_k) for sign in (1, -1)]
        right = int((ends[0] != ends[1]).any(axis=1).sum())
        answer = function(q, k, top_k, step)
        if answer is None or np.shape(answer) or answer != right:
            raise Wrong(f"flips: with T = {T}, top_k = {top_k} and a step of about {size} it is {right}, and not {answer!r}"
                        + explain_flips(answer, q, k, top_k, step, ends))
    q, k, step = np.array([[1, 0.1]] * 3), np.array([[1.0, 0], [1, 0], [1, -1]]), np.array([[0, 0.1]] * 3)
    if function(q, k, 2, step) != 1:                                      # the third query: scores 1, 1, 0.8 and 1, 1, 1
        raise Wrong("flips: where scores tie at the threshold, all of them are kept")


def explain_flips(answer: object, q: np.ndarray, k: np.ndarray, top_k: int, step: np.ndarray, ends: list[np.ndarray]) -> str:
    if isinstance(answer, (bool, np.bool_)):
        return ": count the queries"
    seen = [select((q + sign * step) @ k.T, top_k) for sign in (1, -1)]
    now = select(causal_scores(q, k), top_k)
    for message, count in {
        "that is the number of keys that came or went; count queries": (ends[0] != ends[1]).sum(),
        "that is the number of keys that came; count queries": (ends[0] & ~ends[1]).sum(),
        "later keys were not hidden": (seen[0] != seen[1]).any(axis=1).sum(),
        "compare q + step with q - step, not with q": (ends[0] != now).any(axis=1).sum(),
    }.items():
        if answer == int(count):
            return f": {message}"
    return ""


def check_jump(function: Callable) -> None:
    rng = np.random.default_rng(7)
    for L, K, top_k in [(9, 4, 3), (5, 2, 4), (20, 3, 1)]:
        scores, values = 1.5 * rng.standard_normal(L), rng.standard_normal((L, K))
        order = np.argsort(-scores)
        last, challenger = order[top_k - 1], order[top_k]
        inside = order[:top_k]
        p = softmax(scores[inside])
        right = p[-1] * (values[challenger] - values[last])

        def read(chosen: np.ndarray, risen: np.ndarray) -> np.ndarray:
            return softmax(risen[chosen]) @ values[chosen]

        after = np.append(inside[:-1], challenger)
        risen = scores.copy()
        risen[challenger] = scores[last]
        both = np.append(inside, challenger)
        answer = function(scores.copy(), values.copy(), top_k)
        refuse(answer, right, {
            "jump: the sign; it is the output after minus the output before": -right,
            "jump: the newcomer was counted with the score it began with; when it gets in, it has risen to the threshold":
                read(after, scores) - read(inside, scores),
            "jump: at the tie itself both are kept; asked is the moment after, when the weakest has left": read(both, risen) - read(inside, scores),
            "jump: the weight is that of a softmax over all keys; it runs over the selected ones":
                softmax(scores)[last] * (values[challenger] - values[last]),
            "jump: the difference of the two values, without the weight with which they are read": values[challenger] - values[last],
        })
        compare("jump", answer, right)


EXERCISES = [
    Exercise("attention_backward", 15, check_attention_backward, "dv, dp, dscores, then dq and dk. A sum over queries is a product with a transpose."),
    Exercise("flips", 10, check_flips, "Write a function that returns the (T,T) booleans of what is kept; call it twice."),
    Exercise("jump", 15, check_jump, "At the threshold the two have the same score, hence the same weight."),
]
