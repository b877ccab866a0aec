"""The exercises of chapter 9, four streams."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import numpy as np

from lessons.grading import Exercise, Wrong, compare
from lessons.mutants import MUTANTS, Mutant, planted
from minimoe.config import PRESETS
from minimoe.gradcheck import randomize
from minimoe.layers.softmax import softmax, softmax_backward
from minimoe.model import MiniMoE

FAULTS = [
    *(mutant for mutant in MUTANTS if mutant.layer in ("read", "write")),
    # Graded too, and not told in the chapter
    Mutant("write-softmax-skipped", "write", "minimoe.layers.hyper_connection",
           "# written += S * share * update\n            grads[self.weight] += softmax_backward(dshare, share)",
           "# written += S * share * update\n            grads[self.weight] += dshare",
           "the gradient of the shares is handed to the weights as it is"),
    Mutant("write-overwrites", "write", "minimoe.layers.hyper_connection",
           "# written += S * share * update\n            grads[self.weight] += ",
           "# written += S * share * update\n            grads[self.weight] = ",
           "what an earlier microbatch put there is lost; it takes two backwards to see it"),
    Mutant("read-share-squared", "read", "minimoe.layers.hyper_connection",
           "np.multiply.outer(share, dx)", "np.multiply.outer(share * share / (share @ share), dx)",
           "the shares of the gradient sum to 1 too, and are equal at equal weights"),
]


def check_mix_backward(function: Callable) -> None:
    rng = np.random.default_rng(9)
    for S, N in [(3, 5), (4, 2)]:
        dmixed, streams, weight = rng.standard_normal((S, N)), rng.standard_normal((S, N)), rng.standard_normal((S, S))
        before = [x.copy() for x in (dmixed, streams, weight)]
        answer = function(dmixed, streams, weight)
        if not all(map(np.array_equal, (dmixed, streams, weight), before)):
            raise Wrong("one of the arguments was changed; they belong to the caller")
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise Wrong(f"it should return (dstreams, dweight), and returned {type(answer).__name__}")
        share, dshare = softmax(weight), dmixed @ streams.T
        right = share.T @ dmixed, softmax_backward(dshare, share)
        columns = softmax(weight.T).T
        named = [
            (0, share @ dmixed, "the shares are not transposed: stream r hears of what it took, not of what it gave"),
            (0, dmixed, "the streams do not pass through unchanged here"),
            (0, columns.T @ dmixed, "the softmax goes over the columns; each row sums to 1"),
            (1, dshare, "the softmax is skipped: this is the gradient of the shares"),
            (1, softmax_backward(dshare.T, share), "transposed: dshare[s,r] belongs to mixed[s] and streams[r]"),
            (1, softmax_backward(dshare.T, columns.T).T, "the softmax goes over the columns; each row sums to 1"),
            (1, share * dshare, "the softmax's second term is missing: what one share gains, the others lose"),
        ]
        for i, wrong, message in named:
            if np.shape(answer[i]) == wrong.shape and np.allclose(answer[i], wrong) and not np.allclose(wrong, right[i]):
                raise Wrong(f"{('dstreams', 'dweight')[i]}: {message}")
        compare(f"dstreams for {S} streams", answer[0], right[0])
        compare(f"dweight for {S} streams", answer[1], right[1])


def check_zero_gradients(function: Callable) -> None:
    for blocks, streams, reads_equal, writes_equal in [*product([3], [4], [False, True], [False, True]), (1, 3, False, False), (2, 1, False, False)]:
        right = measured(blocks, streams, reads_equal, writes_equal)
        answer = function(blocks, streams, reads_equal, writes_equal)
        if not isinstance(answer, (set, frozenset)):
            raise Wrong(f"it should return a set of names, and returned {answer!r}")
        if answer != right:
            case = f"{blocks} blocks, {streams} streams, reads {'' if reads_equal else 'un'}equal, writes {'' if writes_equal else 'un'}equal"
            some, others = sorted(answer - right), sorted(right - answer)
            raise Wrong(f"{case}: " + "; ".join(
                [f"{name} has a gradient" for name in some] + [f"{name} has none, and is not in the set" for name in others]
            ))


def measured(blocks: int, streams: int, reads_equal: bool, writes_equal: bool) -> set[str]:
    """Return the stream weights whose gradient is nothing but rounding."""
    rng = np.random.default_rng(blocks)
    model = randomize(MiniMoE(replace(PRESETS["micro"], blocks=blocks, streams=streams), rng, np.float64), rng)
    for block in model.blocks:
        block.read.data = np.full(streams, 0.3) if reads_equal else block.read.data
        block.write.data = np.full(streams, 0.3) if writes_equal else block.write.data
    logits, saved = model.forward(rng.integers(0, 260, (2, 9)))
    grads = model.zero_grads()
    model.backward(rng.standard_normal(logits.shape), saved, grads)
    return {name for name, p in model.named_parameters() if name.endswith((".read", ".write")) and np.abs(grads[p]).max() < 1e-9}


def check_backward_is_right(function: Callable) -> None:
    def says(what: str) -> bool:
        answer = function()
        if not isinstance(answer, (bool, np.bool_)):
            raise Wrong(f"for {what} it returned {answer!r}, which is neither True nor False")
        return bool(answer)

    if not says("the layers as they stand"):
        raise Wrong("it rejects the layers as they stand; with equal streams, or one stream, the weights have no gradient to check")
    for mutant in FAULTS:
        with planted(mutant):
            if says(mutant.name):
                raise Wrong(f"it accepts {mutant.name}: {mutant.why}")


EXERCISES = [
    Exercise("mix_backward", 10, check_mix_backward, "It is a matrix product: what multiplied from the left is transposed. Then row by row the softmax."),
    Exercise("zero_gradients", 15, check_zero_gradients,
             "Ask of each block: do the streams differ when it reads? Do the gradients of the streams differ when it has written?"),
    Exercise("backward_is_right", 10, check_backward_is_right, "Nothing may be equal: not the streams, not the weights, and not 1 and S."),
]
