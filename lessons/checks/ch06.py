"""The exercises of chapter 6, linear attention."""

import tracemalloc
from collections.abc import Callable
from itertools import product

import numpy as np

from lessons.grading import Exercise, Wrong, compare
from lessons.mutants import MUTANTS, Mutant, planted
from lessons.solutions import ch06
from minimoe.gradcheck import randomize
from minimoe.layers.linear_attention import LinearAttention

MODULE = "minimoe.layers.linear_attention"


def fault(name: str, line: str, broken: str, why: str) -> Mutant:
    return Mutant(name, "linear_attention", MODULE, line, broken, why)


# Faults in the state that one part leaves to the next, or in how the next part takes it up. None fails the package's
# gradient check, which reads all positions at once and in chunks of 5
FAULTS = [
    fault("the position stands still", "LinearState(state.position + T", "LinearState(state.position",
          "every part is turned as if it were the first"),
    fault("the position is that of the last part", "LinearState(state.position + T", "LinearState(state.position * 0 + T",
          "right after the first part, wrong after the second: two parts do not show it"),
    fault("positions are counted in chunks", "LinearState(state.position + T",
          "LinearState(state.position + self.chunk_size * len(chunks)",
          "right for parts of whole chunks"),
    fault("kv lacks the last chunk", "T, kv, past.copy())", "T, chunks[-1][-1], past.copy())",
          "the state is taken before the last chunk is added"),
    fault("z stops at the last chunk's first position", "T, kv, past.copy())", "T, kv, z[:, t][:, 0].copy())",
          "right in chunks of one position"),
    fault("the rows share a state", "T, kv, past.copy())", "T, kv, past[:1].repeat(B, axis=0))",
          "right for the first row, and for equal rows"),
    fault("a lone position is stored transposed", "bhck,bhcv->bhkv", "bhck,bhcv->bhvk",
          "only where a chunk has one position"),
    fault("kv starts anew in every part", "kv, past, chunks = state.kv,", "kv, past, chunks = 0 * state.kv,",
          "the numerator forgets what the earlier parts said"),
    fault("several positions at once forget z", "over_time(causal, phi[:, t, 1]) + past[:, None]",
          "over_time(causal, phi[:, t, 1]) + past[:, None] * (start > 0 or T == 1)",
          "right when the parts have one position each"),
]


def check_reverse_scan(function: Callable) -> None:
    rng = np.random.default_rng(6)
    for T, K, V in [(1, 2, 3), (7, 3, 4), (6, 5, 2)]:
        q, k, v, dn = (rng.standard_normal((T, width)) for width in (K, K, V, V))
        before = [x.copy() for x in (q, k, v, dn)]
        answer = function(q, k, v, dn)
        if not all(map(np.array_equal, (q, k, v, dn), before)):
            raise Wrong("one of the arguments was changed; they belong to the caller")
        if not isinstance(answer, tuple) or len(answer) != 3:
            raise Wrong(f"it should return (dq, dk, dv), and returned {type(answer).__name__}")
        past = np.tril(np.ones((T, T)))                                   # 1 where the key is no later than the query
        right = gradients(q, k, v, dn, past)
        named = {
            "the causal mask is missing: every key meets every query": past * 0 + 1,
            "a position does not meet itself: the sums include s = t": past - np.eye(T),
            "the sum runs the wrong way: over keys after the query": past.T,
            "there is no sum: a position meets itself alone": np.eye(T),
        }
        for i, name in enumerate(("dq", "dk", "dv")):
            for message, mask in named.items():
                wrong = gradients(q, k, v, dn, mask)[i]
                if np.shape(answer[i]) == wrong.shape and np.allclose(answer[i], wrong) and not np.allclose(wrong, right[i]):
                    raise Wrong(f"{name} for T = {T}: {message}")
            compare(f"{name} for T = {T}, K = {K}, V = {V}", answer[i], right[i])
    T = 4000
    q, k, v, dn = (rng.standard_normal((T, width)) for width in (2, 2, 3, 3))
    tracemalloc.start()
    try:
        function(q, k, v, dn)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    if peak > T * T:                                                      # bytes: an eighth of one such array of float64
        raise Wrong(f"for {T:,} positions it takes {peak / 1e6:.0f} MB; a state of K * V numbers is enough, and no (T,T) array")


def gradients(q: np.ndarray, k: np.ndarray, v: np.ndarray, dn: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the three gradients by (T,T) arrays; mask[t,s] says whether query t meets key s."""
    scores, dscores = q @ k.T * mask, dn @ v.T * mask
    return dscores @ k, dscores.T @ q, scores.T @ dn


def check_saved_numbers(function: Callable) -> None:
    for T, K, C in [(12, 4, 4), (12, 4, 1), (12, 4, 12), (11, 2, 4), (5, 6, 8), (64, 8, 16)]:
        layer = LinearAttention(2, 1, K, C, np.random.default_rng(0), np.float64)
        chunks = layer.forward(np.ones((1, T, 2)))[1][3]
        right = sum(scores.size + kv.size for *_, scores, kv in chunks)
        answer = function(T, K, C)
        if answer != right:
            known = {
                T * T + K * K: "that is one array of T * T scores and one state",
                T // C * (C * C + K * K): "the last chunk is missing where C does not divide T",
                -(-T // C) * (C * C + K * K): "the last chunk is shorter where C does not divide T",
                T * C + K * K: "a state is kept for every chunk",
            }
            more = f": {known[answer]}" if answer in known else ""
            raise Wrong(f"saved_numbers({T}, {K}, {C}) is {answer!r}; the layer keeps {right}{more}")


def check_smallest_inputs(function: Callable) -> None:
    names = list(ch06.smallest_inputs())
    mutants = {mutant.name: mutant for mutant in MUTANTS}
    answer = function()
    if not isinstance(answer, dict) or set(answer) != set(names):
        raise Wrong(f"it should return a dict whose keys are {', '.join(names)}")
    for name in names:
        try:
            T, C = (int(n) for n in answer[name])
        except (TypeError, ValueError):
            raise Wrong(f"{name}: expected (T, C), got {answer[name]!r}") from None
        if not 1 <= C <= T <= 12:
            raise Wrong(f"{name}: expected 1 <= C <= T <= 12, got {(T, C)}")
        if not shows(mutants[name], T, C):
            raise Wrong(f"{name}: with T = {T} in chunks of {C} the gradient is right")
        for smaller in product(range(1, T + 1), repeat=2):
            if smaller < (T, C) and smaller[1] <= smaller[0] and shows(mutants[name], *smaller):
                raise Wrong(f"{name}: it shows at {(T, C)}, and at a smaller (T, C) too")


def shows(mutant: Mutant, T: int, C: int) -> bool:
    """Whether the gradient of the input is another one when the fault is planted."""
    rng = np.random.default_rng(3)
    layer = randomize(LinearAttention(6, 1, 4, C, rng, np.float64), rng)
    x = rng.standard_normal((2, T, 6))
    y, saved = layer.forward(x)
    dy = rng.standard_normal(y.shape)
    right = layer.backward(dy, saved, {})
    with planted(mutant):
        broken = layer.backward(dy, saved, {})
    return not np.allclose(broken, right, rtol=1e-6, atol=1e-9)


def check_forms_agree(function: Callable) -> None:
    def says(what: str, C: int, T: int) -> bool:
        rng = np.random.default_rng(T)
        layer = randomize(LinearAttention(6, 2, 4, C, rng, np.float64), rng)
        answer = function(layer, rng.standard_normal((3, T, 6)))
        if not isinstance(answer, (bool, np.bool_)):
            raise Wrong(f"for {what} it returned {answer!r}, which is neither True nor False")
        return bool(answer)

    for C, T in [(4, 11), (1, 8), (16, 9), (4, 12), (3, 30)]:
        if not says("the layer as it stands", C, T):
            raise Wrong(f"it rejects the layer as it stands, in chunks of {C} with T = {T}")
    for mutant in FAULTS:
        with planted(mutant):
            if says(mutant.name, 4, 11):
                raise Wrong(f"it accepts this one: {mutant.name} ({mutant.why})")


EXERCISES = [
    Exercise("reverse_scan", 15, check_reverse_scan,
             "Two matrices of shape (K,V): one grows forward and serves dq, the other grows backward and serves dk and dv."),
    Exercise("saved_numbers", 5, check_saved_numbers, "Count per chunk, the last one by itself; then ask which C makes it least."),
    Exercise("smallest_inputs", 15, check_smallest_inputs,
             "For each fault, ask what must exist for the broken line to matter: a second position in a chunk, a second chunk, a third."),
    Exercise("forms_agree", 15, check_forms_agree,
             "Read x in three parts or more, some of one position and some of several, and compare every row at every position."),
]
