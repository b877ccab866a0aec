"""The exercises of chapter 4, rotary positions, and the faults that no gradient check can see."""

from collections.abc import Callable

import numpy as np

from lessons.grading import Exercise, Wrong, compare
from lessons.mutants import Mutant, planted
from minimoe.layers.rope import Rope

MODULE = "minimoe.layers.rope"


def fault(name: str, line: str, broken: str, why: str) -> Mutant:
    return Mutant(name, "rope", MODULE, line, broken, why)


# Each changes forward and backward together, so that the gradient belongs to the output, and the output is another one.
FAULTS = [
    fault("no minus in the exponent", "BASE ** (-pair / K)", "BASE ** (pair / K)",
          "every pair but the first turns too fast, the last of 16 by thousands of radians a position"),
    fault("i where 2i belongs", "np.arange(0, K, 2)", "np.arange(K // 2)",
          "the wavelengths spread over 100 instead of 10,000"),
    fault("positions from 1", "np.arange(length)[:, None]", "np.arange(1, length + 1)[:, None]",
          "no score changes, but no number agrees with a program that counts from 0"),
    fault("turned the other way", "np.exp(1j * angles)", "np.exp(-1j * angles)",
          "as good as the original in a fresh model, and wrong in every model that was trained with the original"),
    fault("channels i and i + K/2", "    pairs = x.reshape(*x.shape[:2], -1).view(turn.dtype)                  # (B,T,.../2)\n"
          "    return (pairs * turn).view(x.dtype).reshape(x.shape)",
          "    halves = x.reshape(*x.shape[:-1], 2, -1).swapaxes(-1, -2)\n"
          "    pairs = np.ascontiguousarray(halves).reshape(*x.shape[:2], -1).view(turn.dtype)\n"
          "    return (pairs * turn).view(x.dtype).reshape(halves.shape).swapaxes(-1, -2).reshape(x.shape)",
          "the other convention: a checkpoint of one cannot be read by the other"),
    fault("heads share out the speeds", "np.tile(turn, x[0, 0].size // K)", "np.repeat(turn, x[0, 0].size // K, axis=-1)",
          "the first head gets the fast turns and the last head the slow ones; with one head nothing is wrong"),
    fault("first is ignored", "np.reshape(first, (-1, 1)) + np.arange(T)", "np.reshape(first, (-1, 1)) * 0 + np.arange(T)",
          "training is right; decoding takes every new byte for the first"),
    fault("a table of 128 angles", "np.result_type(x, np.complex64))[positions]",
          "np.result_type(x, np.complex64))[positions % 128]",
          "a table shorter than the context, read in a circle: right up to position 127"),
]
# Graded too, and not told in the chapter
MORE_FAULTS = [
    fault("another base", "BASE ** (-pair / K)", "500.0 ** (-pair / K)", "the base is 500 instead of 10,000"),
    fault("turns per position, not radians", "[:, None] * frequencies", "[:, None] * frequencies * 2 * np.pi",
          "angles are counted in whole turns instead of radians, so that the fastest pair never moves"),
    fault("every row like the first", "return rotate(x, turn), turn", "turn = turn[:1]\n        return rotate(x, turn), turn",
          "with `first` an array, every row is turned as if it stood where row 0 stands"),
    fault("the last pair stands still", "BASE ** (-pair / K)", "BASE ** (-pair / K) * (pair < K - 2)",
          "the slowest pair is not turned at all"),
]


def check_rope_backward(function: Callable) -> None:
    rng = np.random.default_rng(4)
    for B, T, H, K, first in [(2, 7, 3, 6, 0), (1, 5, 2, 8, 11), (2, 4, 1, 2, 3)]:
        dy = rng.standard_normal((B, T, H, K))
        layer = Rope(K)
        turned, saved = layer.forward(dy, first)
        before = dy.copy()
        answer = function(dy, first)
        if not np.array_equal(dy, before):
            raise Wrong("dy belongs to the caller and was changed")
        named = {
            "dy was turned further, by +angle: turn it back": turned,
            "dy came back as it was": dy,
            "positions are counted from 1: the first of them is `first`": layer.backward(dy, layer.forward(dy, first + 1)[1], {}),
        }
        if first:
            named["`first` was not used"] = layer.backward(dy, layer.forward(dy)[1], {})
        for mutant in FAULTS[:2] + FAULTS[4:6]:
            with planted(mutant):
                wrong = layer.backward(dy, layer.forward(dy, first)[1], {})
            named[f"the gradient is that of another rotation: {mutant.name}"] = wrong
        right = layer.backward(dy, saved, {})
        for message, wrong in named.items():
            if np.shape(answer) == wrong.shape and not np.allclose(wrong, right) and np.allclose(answer, wrong, atol=1e-9):
                raise Wrong(message)
        compare(f"dx for dy of shape {dy.shape} and first = {first}", answer, right)


def check_full_turns(function: Callable) -> None:
    cases = [(32, 192, 6), (2, 6, 0), (2, 7, 1), (64, 192, 12), (32, 2048, 11), (128, 131072, 64), (4, 600, 1), (4, 700, 2)]
    for K, context, right in cases:
        answer = function(K, context)
        if answer != right:
            wavelengths = [f"{2 * np.pi * 10000 ** (2 * i / K):.4g}" for i in range(min(K // 2, 3))]
            raise Wrong(
                f"full_turns({K}, {context}) is {answer!r}; it should be {right}. "
                f"The wavelengths begin with {', '.join(wavelengths)}"
            )


def check_is_rope(function: Callable) -> None:
    def rotated(x: np.ndarray, first: np.ndarray | int = 0) -> np.ndarray:
        return Rope(x.shape[-1]).forward(x, first)[0]

    def says(what: str) -> bool:
        answer = function(rotated)
        if answer not in (True, False):
            raise Wrong(f"for {what} it returned {answer!r}, which is neither True nor False")
        return bool(answer)

    if not says("the rotation as it stands"):
        raise Wrong("it rejects the rotation as it stands")
    for mutant in FAULTS + MORE_FAULTS:
        with planted(mutant):
            if says(mutant.name):
                raise Wrong(f"it accepts this one: {mutant.name} ({mutant.why})")


EXERCISES = [
    Exercise("rope_backward", 10, check_rope_backward, "Two lines for each pair, from the two sums of the derivation; cos and sin alone."),
    Exercise("full_turns", 5, check_full_turns, "A pair is back where it was after 2 pi radians."),
    Exercise("is_rope", 20, check_is_rope, "Compare with a second way to compute the same: a loop, with two rows, two heads and `first` far out."),
]
