"""Planted faults: one list of ways to break a backward pass, the optimizer or decoding, each of which a check must catch.

    with planted(mutant):
        print(gradcheck.cases()[mutant.layer]())                          # FAILED, and where

Every fault is silent: shapes fit, nothing raises, and most would still train, only worse. Not here is what no gradient
check can see, a forward that computes the wrong thing beside the backward that belongs to it, such as a rotation at the
wrong speed: for that the same output must be computed in a second way.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import CodeType, FunctionType, ModuleType
from typing import NamedTuple


class Mutant(NamedTuple):
    """One planted fault."""

    name: str
    layer: str     # the check that must catch it: a key of `gradcheck.cases()`, or of lessons/known_answers.py
    module: str
    line: str      # the source as it stands, there exactly once
    broken: str    # what is put in its place
    why: str


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """Break the module in memory, not its file, inside the `with` block: everybody who imported from it sees the fault.

    Raises `ValueError` if the line is not there exactly once, or if breaking it changes no function.
    """
    module = import_module(mutant.module)
    source = inspect.getsource(module)
    if source.count(mutant.line) != 1:
        raise ValueError(f"{mutant.name}: {mutant.module} has its line {source.count(mutant.line)} times, not once")
    broken = dict(definitions(compile(source.replace(mutant.line, mutant.broken), module.__file__, "exec")))
    whole = {f: f.__code__ for f in functions(module) if broken.get(f.__qualname__, f.__code__) != f.__code__}
    if not whole:
        raise ValueError(f"{mutant.name}: no function of {mutant.module} changes")
    for function, code in whole.items():
        if broken[function.__qualname__].co_freevars != code.co_freevars:
            raise ValueError(f"{mutant.name}: {function.__qualname__} would close over other variables")
    try:
        for function in whole:
            function.__code__ = broken[function.__qualname__]
        forget(module)
        yield
    finally:
        for function, code in whole.items():
            function.__code__ = code
        forget(module)


def forget(module: ModuleType) -> None:
    """Empty the module's caches: what they hold was worked out by other code than is there now."""
    for value in vars(module).values():
        if hasattr(value, "cache_clear"):
            value.cache_clear()


def definitions(code: CodeType) -> Iterator[tuple[str, CodeType]]:
    """Yield (qualified name, code) of all that is defined inside `code`."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant.co_qualname, constant
            yield from definitions(constant)


def functions(owner: ModuleType | type) -> Iterator[FunctionType]:
    """Yield the functions and methods that are defined in a module or a class."""
    home = owner.__module__ if isinstance(owner, type) else owner.__name__
    for value in vars(owner).values():
        value = inspect.unwrap(getattr(value, "fget", value))             # from behind a property or another decorator
        if isinstance(value, FunctionType) and value.__module__ == home:
            yield value
        elif isinstance(value, type) and value.__module__ == home:
            yield from functions(value)


MUTANTS = [
    Mutant(
        "linear-gradient-averaged", "linear", "minimoe.layers.linear",
        "+= drows.T @ rows", "+= drows.T @ rows / len(rows)",
        "The weight serves every row, so its gradient is the sum over rows, not their mean; by what to divide, the "
        "loss has said already. `weight` has the right direction and the wrong length.",
    ),
    Mutant(
        "linear-last-row-forgotten", "linear", "minimoe.layers.linear",
        "+= drows.T @ rows", "+= drows[:-1].T @ rows[:-1]",
        "A slice one short: the last row teaches `weight` nothing. With many rows the error is small, yet far above "
        "the 1e-6 that a centred difference in float64 can tell.",
    ),
    Mutant(
        "linear-dx-scaled", "linear", "minimoe.layers.linear",
        "dx = drows @ self.weight.data", "dx = 1.03 * drows @ self.weight.data",
        "The input's gradient is three percent too large, and `weight` is right. A check that accepts errors of a few "
        "percent lets it through, and a model multiplies it once a layer.",
    ),
    Mutant(
        "linear-dx-sign", "linear", "minimoe.layers.linear",
        "dx = drows @ self.weight.data", "dx = -drows @ self.weight.data",
        "A sign. The top layer of a model would still learn, its own weight gradient being right, while all below it "
        "climbs instead of descending.",
    ),
    Mutant(
        "linear-overwrites", "linear", "minimoe.layers.linear",
        "grads[self.weight] += drows", "grads[self.weight] = drows",
        "`=` for `+=`: what an earlier microbatch, or the matrix's other use, has put there is lost. The first "
        "backward looks right; it takes a second into the same `grads` to see it.",
    ),

    Mutant(
        "embedding-repeated-token", "embedding", "minimoe.layers.embedding",
        "np.add.at(grads[self.weight], ids, dy)", "grads[self.weight][ids] += dy",
        "At a repeated index NumPy's `+=` adds only once; `np.add.at` adds every time. A token that stands twice in "
        "the batch loses a gradient, and a check whose ids all differ sees nothing.",
    ),
    Mutant(
        "embedding-frequency", "embedding", "minimoe.layers.embedding",
        "np.add.at(grads[self.weight], ids, dy)",
        "np.add.at(grads[self.weight], ids, dy / np.bincount(ids.reshape(-1))[ids][..., None])",
        "Each row's gradient is divided by how often its token was seen: a mean where the loss has a sum. Rows of "
        "tokens seen once are right, the others too small.",
    ),
    Mutant(
        "embedding-padding-frozen", "embedding", "minimoe.layers.embedding",
        "np.add.at(grads[self.weight], ids, dy)", "np.add.at(grads[self.weight], ids, dy * (ids != 0)[..., None])",
        "Row 0 is taken for padding and never learns. What is padding is for the loss to say, by its weights; here "
        "the output depends on row 0, and the gradient says that it does not.",
    ),

    Mutant(
        "rmsnorm-gain-dropped", "rmsnorm", "minimoe.layers.rmsnorm",
        "dunit = dy * self.weight.data", "dunit = dy",
        "y = unit * gain sends dy * gain to unit. At the initial gain of 1 nothing is wrong, so a check of a fresh "
        "layer passes; gains drawn around 1 show it in the input.",
    ),
    Mutant(
        "rmsnorm-along-dropped", "rmsnorm", "minimoe.layers.rmsnorm",
        "return (dunit - unit * along) * scale", "return dunit * scale",
        "The scale is taken for a constant. But it falls as x grows, so that making x longer changes nothing; without "
        "the second term the input's gradient claims that it does.",
    ),
    Mutant(
        "rmsnorm-along-summed", "rmsnorm", "minimoe.layers.rmsnorm",
        'np.einsum("...d,...d->...", dunit, unit)[..., None] / D',
        'np.einsum("...d,...d->...", dunit, unit)[..., None]',
        "The mean of x^2 has a 1/D, which its gradient must repeat. Without it the correction is D times too strong, "
        "and the input fails.",
    ),
    Mutant(
        "rmsnorm-along-without-gain", "rmsnorm", "minimoe.layers.rmsnorm",
        'np.einsum("...d,...d->...", dunit, unit)', 'np.einsum("...d,...d->...", dy, unit)',
        "The gain is remembered in one of two terms and forgotten in the other. Invisible at gain 1 and small near "
        "it, it shows in the input.",
    ),
    Mutant(
        "rmsnorm-scale-dropped", "rmsnorm", "minimoe.layers.rmsnorm",
        "return (dunit - unit * along) * scale", "return dunit - unit * along",
        "unit = x * scale sends its gradient back times scale. Each row of the input's gradient has the right "
        "direction and the wrong length, and none is wrong where the root mean square is 1.",
    ),
    Mutant(
        "rmsnorm-gain-from-input", "rmsnorm", "minimoe.layers.rmsnorm",
        "unit.reshape(-1, D))", "(unit / scale).reshape(-1, D))",
        "The gain multiplies the normalised row, but its gradient is taken with the row as it came in. Only `weight` "
        "fails: rows of large numbers count for too much.",
    ),
    Mutant(
        "rmsnorm-overwrites", "rmsnorm", "minimoe.layers.rmsnorm",
        "grads[self.weight] += np.einsum(", "grads[self.weight] = np.einsum(",
        "`=` for `+=`: of several microbatches only the last one teaches the gain. A loss curve hides it, as a gain has "
        "little to learn; the check goes backward twice, and sees half of what it should.",
    ),
    Mutant(
        "rmsnorm-saved-overwritten", "rmsnorm", "minimoe.layers.rmsnorm",
        "return (dunit - unit * along) * scale", "unit *= along\n        return (dunit - unit) * scale",
        "To spare an array, backward writes into what forward saved. Nothing is wrong until the same `saved` "
        "is read again.",
    ),

    Mutant(
        "rope-turned-further", "rope", "minimoe.layers.rope",
        "rotate(dy, turn.conj())", "rotate(dy, turn)",
        "The gradient of a rotation is the rotation back. Turned further instead, it is right at position 0 alone, "
        "where the angle is 0.",
    ),
    Mutant(
        "rope-not-turned-back", "rope", "minimoe.layers.rope",
        "return rotate(dy, turn.conj())", "return dy",
        "The rotation is forgotten on the way back. A rotation keeps lengths, so the gradient's norm gives nothing "
        "away; its direction is wrong at every position but 0.",
    ),
    Mutant(
        "rope-backward-from-1", "rope", "minimoe.layers.rope",
        "rotate(dy, turn.conj())", "rotate(dy, (turn * turn[:, 1:2]).conj())",
        "Backward counts positions from 1 and forward from 0, so every angle is one position too large. Scores depend "
        "on distances alone and forward could count from either, but backward must count as it does.",
    ),
    Mutant(
        "rope-halves", "rope", "minimoe.layers.rope",
        "return rotate(dy, turn.conj())",
        "pairs = dy.reshape(*dy.shape[:-1], 2, -1).swapaxes(-1, -2).reshape(dy.shape)\n"
        "        pairs = rotate(pairs, turn.conj()).reshape(*dy.shape[:-1], -1, 2)\n"
        "        return pairs.swapaxes(-1, -2).reshape(dy.shape)",
        "Forward pairs each channel with its neighbour, backward pairs channel i with i + K/2. Both conventions are "
        "RoPE, and the gradient of one is not the gradient of the other.",
    ),

    Mutant(
        "linear-attention-denominator-constant", "linear_attention", "minimoe.layers.linear_attention",
        'ddenominator = -np.einsum("bthk,bthk->bth", dnumerator, attended)[..., None]',
        "ddenominator = np.zeros_like(denominator)",
        "The denominator is taken for a constant, as if it only kept numbers small. In `qkv.weight` the rows of q and "
        "k fail, one of their two paths being gone; those of v, which is in the numerator alone, are right.",
    ),
    Mutant(
        "linear-attention-denominator-sign", "linear_attention", "minimoe.layers.linear_attention",
        "ddenominator = -np.einsum", "ddenominator = np.einsum",
        "The derivative of 1/d is -1/d^2. Without the minus, attention paid to one key is no longer taken from the "
        "others, and the gradients of q and k fail.",
    ),
    Mutant(
        "linear-attention-quotient", "linear_attention", "minimoe.layers.linear_attention",
        'np.einsum("bthk,bthk->bth", dnumerator, attended)', 'np.einsum("bthk,bthk->bth", dattended, attended)',
        "The derivative of n/d has d squared under it, and here d stands once. It would hide wherever the denominator "
        "happens to be near 1.",
    ),
    Mutant(
        "linear-attention-no-reverse-sum", "linear_attention", "minimoe.layers.linear_attention",
        "over_time(causal.T, dz[:, t])", "dz[:, t]",
        "z is a running sum over time, so a key's gradient is a sum over all later queries. Here a key hears from its "
        "own position, and from the first of each later chunk: keys fail, queries and values do not.",
    ),
    Mutant(
        "linear-attention-sum-runs-forward", "linear_attention", "minimoe.layers.linear_attention",
        "over_time(causal.T, dz[:, t])", "over_time(causal, dz[:, t])",
        "The gradient of a running sum runs backward. Summed forward again, a key hears from the queries before it, "
        "which never saw it, instead of those after.",
    ),
    Mutant(
        "linear-attention-future-z-forgotten", "linear_attention", "minimoe.layers.linear_attention",
        "dfuture = dphi[:, t, 1][:, 0]", "dfuture = np.zeros_like(dfuture)",
        "The reverse sum starts anew in every chunk. With a single chunk nothing would be wrong, so the check reads "
        "11 positions in chunks of 5.",
    ),
    Mutant(
        "linear-attention-future-kv-overwritten", "linear_attention", "minimoe.layers.linear_attention",
        "dkv = dkv + transpose(qc) @ dn", "dkv = transpose(qc) @ dn",
        "`=` for `+=` in the gradient of the state: a chunk hears from the next one and not from those after it. It "
        "takes three chunks to show, in k and v.",
    ),
    Mutant(
        "linear-attention-future-not-masked", "linear_attention", "minimoe.layers.linear_attention",
        "            dscores *= causal\n", "",
        "Forward hides later keys, and backward sends them gradient. q and k fail inside a chunk; in chunks of one "
        "position there is no later key, and nothing would be wrong.",
    ),
    Mutant(
        "linear-attention-query-misses-past", "linear_attention", "minimoe.layers.linear_attention",
        "dscores @ kc + dn @ transpose(kv)", "dscores @ kc",
        "A query meets the keys of its own chunk through the scores and all earlier ones through kv. The second path "
        "is dropped: queries of the first chunk are right, the others are not.",
    ),
    Mutant(
        "linear-attention-state-transposed", "linear_attention", "minimoe.layers.linear_attention",
        "vc @ transpose(dkv)", "vc @ dkv",
        "kv is (K,K), so a missing transpose fits without complaint: where two sizes are equal, shapes catch nothing. "
        "The keys of every chunk but the last fail.",
    ),
    Mutant(
        "linear-attention-scores-transposed", "linear_attention", "minimoe.layers.linear_attention",
        "transpose(scores) @ dn", "scores @ dn",
        "scores is (C,C), and its transpose decides whether a value hears from the later queries, which read it, or "
        "from the earlier ones, which never saw it. Values fail.",
    ),
    Mutant(
        "linear-attention-not-turned-back", "linear_attention", "minimoe.layers.linear_attention",
        "dphi += self.rope.backward(dturned, saved_rope, grads)", "dphi += dturned",
        "The numerator sees phi turned by its position, the denominator sees it as it is. The numerator's gradient "
        "must be turned back before the two are added.",
    ),
    Mutant(
        "linear-attention-elu-everywhere", "linear_attention", "minimoe.layers.linear_attention",
        "dphi *= np.minimum(phi, 1)", "dphi *= phi",
        "phi' = phi holds where phi is e^x, below 0. Above it phi is x + 1 and phi' is 1, so every positive q and k "
        "gets too large a gradient.",
    ),
    Mutant(
        "linear-attention-saved-overwritten", "linear_attention", "minimoe.layers.linear_attention",
        "dphi *= np.minimum(phi, 1)", "dphi *= np.minimum(phi, 1, out=phi)",
        "The derivative is written over phi itself, to spare an array. This gradient is right, and the next one from "
        "the same `saved` is not.",
    ),

    Mutant(
        "softmax-without-its-sum", "sparse_attention", "minimoe.layers.softmax",
        'dx = dp - np.einsum("...i,...i->...", p, dp)[..., None]', "dx = dp.copy()",
        "What one place gains the others lose, hence dp - sum(p * dp). Without the sum, raising all scores alike "
        "seems to matter; q and k fail unless dp happens to be 0 on average.",
    ),
    Mutant(
        "softmax-sum-over-queries", "sparse_attention", "minimoe.layers.softmax",
        'np.einsum("...i,...i->...", p, dp)[..., None]', "(p * dp).sum(axis=-2, keepdims=True)",
        "The sum runs over queries instead of over the keys that share one softmax. The scores are (T,T), so every "
        "shape fits; q and k fail, v does not.",
    ),
    Mutant(
        "sparse-attention-scale-dropped", "sparse_attention", "minimoe.layers.sparse_attention",
        "        dscores *= K**-0.5\n", "",
        "scores = q k^T / sqrt(K), and a constant factor comes back as the same factor. q and k get sqrt(K) times too "
        "much, v is right.",
    ),
    Mutant(
        "sparse-attention-selection-forgotten", "sparse_attention", "minimoe.layers.sparse_attention",
        "q, k, v, kept, p, saved_out)", "q, k, v, kept, softmax(scores), saved_out)",
        "Forward is a softmax over the selected keys, backward goes by one over all earlier keys. Queries with no "
        "more than top_k keys are right, so a check on a short sequence would pass.",
    ),
    Mutant(
        "sparse-attention-key-gradient-transposed", "sparse_attention", "minimoe.layers.sparse_attention",
        "np.matmul(transpose(dscores), q, out=dk)", "np.matmul(dscores, q, out=dk)",
        "A key's gradient comes from the queries that read it, down a column of dscores and not along a row. With as "
        "many keys as queries the missing transpose fits.",
    ),
    Mutant(
        "sparse-attention-value-gradient-unweighted", "sparse_attention", "minimoe.layers.sparse_attention",
        "np.matmul(transpose(p), dattended, out=dv)", "np.matmul(transpose(kept), dattended, out=dv)",
        "Every selected value gets the whole gradient of its query instead of its share p. The values' rows of "
        "`qkv.weight` are too large, those of q and k are right.",
    ),
    Mutant(
        "sparse-attention-query-not-turned-back", "sparse_attention", "minimoe.layers.sparse_attention",
        "dqkv[:, :, :2] = self.rope.backward(dqkv[:, :, :2], saved_rope, grads)",
        "dqkv[:, :, 1] = self.rope.backward(dqkv[:, :, :2], saved_rope, grads)[:, :, 1]",
        "q and k were both turned, and only k's gradient is turned back. The queries' rows of `qkv.weight` fail; "
        "`out.weight`, above the fault, is right.",
    ),

    Mutant(
        "swiglu-value-without-activation", "expert", "minimoe.layers.experts",
        "np.multiply(dhidden, silu, out=dvalue)", "np.multiply(dhidden, s, out=dvalue)",
        "hidden = silu(gate) * value, so the value's gradient is dhidden * silu(gate). The bare sigmoid is right at gate 1 "
        "alone, and has the wrong sign for every negative gate.",
    ),
    Mutant(
        "swiglu-gate-without-value", "expert", "minimoe.layers.experts",
        "dsilu = dhidden * value", "dsilu = dhidden",
        "In the product rule each factor's gradient is multiplied by the other factor. The gate's half forgets the "
        "value, and is then right in sign by luck alone.",
    ),
    Mutant(
        "swiglu-sigmoid-constant", "expert", "minimoe.layers.experts",
        "s + silu * (1 - s)", "s",
        "silu = gate * sigmoid(gate) has the gate twice, and here the sigmoid is taken for a constant. The lost term "
        "is 0 at gate 0 and far from it, largest in between.",
    ),
    Mutant(
        "swiglu-sigmoid-without-gate", "expert", "minimoe.layers.experts",
        "s + silu * (1 - s)", "s + s * (1 - s)",
        "The second term of silu' is gate * sigmoid * (1 - sigmoid). Without the gate it is right at gate 1, and has "
        "the wrong sign for every negative gate.",
    ),
    Mutant(
        "swiglu-halves-swapped", "expert", "minimoe.layers.experts",
        "dgate, dvalue = halves(dpre)", "dvalue, dgate = halves(dpre)",
        "Read as gate first, then value; put together as value first, then gate. The halves have the same width, so "
        "that only numbers can tell.",
    ),

    Mutant(
        "experts-down-without-activation", "experts", "minimoe.layers.experts",
        "        hidden = silu * value\n", "        hidden = gate * value\n",
        "The hidden row is computed again for the gradient of `down`, without its sigmoid. Only `down` fails: what is "
        "recomputed must be the same forward.",
    ),
    Mutant(
        "experts-gradient-averaged", "experts", "minimoe.layers.experts",
        "ddown += dy.T @ hidden.T", "ddown += dy.T @ hidden.T / len(x)",
        "Each expert's gradient is divided by its number of rows, as if a busy expert should not learn more. `down` "
        "fails, save for an expert with a single row.",
    ),
    Mutant(
        "experts-gradient-to-all", "experts", "minimoe.layers.experts",
        "dup = grads[self.up][e] if", "dup = grads[self.up][0] if",
        "Without its index every expert's gradient goes to the first one, which learns for all, and the others not at all: "
        "`up` fails.",
    ),
    Mutant(
        "experts-neighbour", "experts", "minimoe.layers.experts",
        "doutputs[rows], self.up.data[e], self", "doutputs[rows], self.up.data[e - 1], self",
        "An index off by one: gradient leaves an expert through its neighbour's matrix. Index -1 is legal, so not "
        "even the first expert complains; the input fails.",
    ),
    Mutant(
        "experts-saved-overwritten", "experts", "minimoe.layers.experts",
        "silu = gate * s\n", "silu = np.multiply(gate, s, out=gate)\n",
        "To spare an array, backward writes into what forward saved. This one is right, and the next one, of the same "
        "`saved`, is not: the check goes backward twice.",
    ),
    Mutant(
        "experts-overwrites", "experts", "minimoe.layers.experts",
        "ddown += dy.T @ hidden.T", "ddown[:] = dy.T @ hidden.T",
        "`=` for `+=`: of several microbatches only the last one teaches `down`. A check that starts from zero gradients "
        "and goes backward once cannot tell the two apart.",
    ),
    Mutant(
        "experts-second-one-silent", "experts", "minimoe.layers.experts",
        "dcopies.reshape(*weights.shape, -1).sum(axis=1)", "dcopies.reshape(*weights.shape, -1)[:, 0]",
        "A row was copied to two experts, so their gradients add up. Only that of the first choice comes back: all "
        "parameters are right, the input is not.",
    ),
    Mutant(
        "experts-order-not-undone", "experts", "minimoe.layers.experts",
        "dcopies[order] = dgathered ", "dcopies = dgathered ",
        "The experts return gradients grouped by expert, and they are read as if they stood row by row. Each row gets "
        "the gradients of others; only the input fails.",
    ),
    Mutant(
        "experts-choices-averaged", "experts", "minimoe.layers.experts",
        "weights.reshape(-1)[order, None]", "weights.reshape(-1)[order, None] / k",
        "The weighted outputs are added, and backward takes them as averaged over the k choices: with two, every number "
        "of the experts' matrices is half of what it should be, and so is what comes back to the input through them.",
    ),
    Mutant(
        "experts-weight-forgotten", "experts", "minimoe.layers.experts",
        "doutputs = dsorted * weights.reshape(-1)[order, None]", "doutputs = dsorted.copy()",
        "The output is multiplied by its weight on the way out, and its gradient is not on the way back: every expert "
        "learns as if it had been chosen alone.",
    ),
    Mutant(
        "experts-weights-from-the-input", "experts", "minimoe.layers.experts",
        'np.einsum("rd,rd->r", dsorted, outputs)', 'np.einsum("rd,rd->r", dsorted, gathered)',
        "A weight multiplies the expert's output, so its gradient is dy . output. Here it is dy . input: the experts learn, "
        "and the router would learn something else than which expert is good.",
    ),

    Mutant(
        "moe-router-not-taught", "moe", "minimoe.layers.moe",
        "dchosen = softmax_backward(dweights, saved.weights)", "dchosen = np.zeros_like(dweights)",
        "The experts' weights are taken for constants, so the router learns from the load balance alone: it spreads "
        "rows evenly and never learns where they belong. `router.weight` and the input fail.",
    ),
    Mutant(
        "moe-weights-not-renormalised", "moe", "minimoe.layers.moe",
        "dchosen = softmax_backward(dweights, saved.weights)",
        "dchosen = softmax_backward(dweights, np.take_along_axis(saved.probs, saved.chosen, axis=1))",
        "Forward weighs by a softmax over the chosen logits, backward by the chosen places of the softmax over all. "
        "Some models do the one and some the other; `router.weight` fails where they meet.",
    ),
    Mutant(
        "moe-weights-independent", "moe", "minimoe.layers.moe",
        "dchosen = softmax_backward(dweights, saved.weights)",
        "dchosen = dweights * saved.weights * (1 - saved.weights)",
        "Each weight is taken to depend on its own logit alone. With two experts a row, what one weight gains the "
        "other loses, and half of what the router should hear is missing.",
    ),
    Mutant(
        "moe-balance-ignored", "moe", "minimoe.layers.moe",
        "            dlogits += softmax_backward(dprobs, saved.probs)", "            pass",
        "The load-balance loss is in the loss, and its gradient is dropped: experts may collapse, and no number says "
        "why. The check's objective holds that loss too, so `router.weight` and the input fail.",
    ),
    Mutant(
        "moe-balance-past-the-softmax", "moe", "minimoe.layers.moe",
        "dlogits += softmax_backward(dprobs, saved.probs)", "dlogits += dprobs",
        "The gradient for the probabilities is handed to the logits, past the softmax between them. Every logit is "
        "pushed down, the crowded experts' most, so the load may even out; it is still no gradient.",
    ),
    Mutant(
        "moe-experts-path", "moe", "minimoe.layers.moe",
        "        dx += dx_experts\n", "",
        "The chosen experts learn, but the gradient that they pass on is thrown away. One of three paths from x to y is "
        "gone: the input fails, and in a model all that lies below it.",
    ),
    Mutant(
        "moe-shared-expert-path", "moe", "minimoe.layers.moe",
        "dx = self.shared.backward(drows, saved.shared, grads)", "dx = np.zeros_like(drows); self.shared.backward(drows, saved.shared, grads)",
        "The shared expert learns, but the gradient that it passes on is thrown away. One of three paths from x to y "
        "is gone: the input fails, and in a model all that lies below it.",
    ),
    Mutant(
        "moe-router-path", "moe", "minimoe.layers.moe",
        "dx += self.router.backward(", "self.router.backward(",
        "The router learns, but x is not told that it decides its own weights. Every parameter is right; only the "
        "input fails.",
    ),

    Mutant(
        "read-equal-shares", "read", "minimoe.layers.hyper_connection",
        "return np.multiply.outer(share, dx)", "return np.multiply.outer(np.full_like(share, 1 / len(share)), dx)",
        "Each stream gets an equal part of the gradient, whatever its share. At equal weights that is right, which is "
        "why the check draws unequal ones; the streams fail.",
    ),
    Mutant(
        "read-softmax-skipped", "read", "minimoe.layers.hyper_connection",
        "# x = share . streams\n"
        "            grads[self.weight] += softmax_backward(dshare, share)",
        "# x = share . streams\n"
        "            grads[self.weight] += dshare",
        "The gradient of the shares is handed to the weights under their softmax. Shares sum to 1, so the gradient of "
        "the weights must sum to 0, and this one does not.",
    ),
    Mutant(
        "read-share-dropped", "read", "minimoe.layers.hyper_connection",
        "return np.multiply.outer(share, dx)", "return np.stack([dx] * len(share))",
        "Every stream gets the whole gradient, as if x were their plain sum. The streams fail, `weight` does not.",
    ),

    Mutant(
        "write-factor-forgotten", "write", "minimoe.layers.hyper_connection",
        "dupdate = (S * share) @ flat", "dupdate = share @ flat",
        "The streams gain S * share * update, and backward forgets the S. The update's gradient is S times too small; "
        "the weights and the streams are right.",
    ),
    Mutant(
        "write-weight-factor-forgotten", "write", "minimoe.layers.hyper_connection",
        "dshare = S * (flat @ update.reshape(-1))", "dshare = flat @ update.reshape(-1)",
        "The same S, forgotten on the path to the weights. AdamW divides the size of a gradient out again, so no "
        "training run would show it.",
    ),
    Mutant(
        "write-identity-weighted", "write", "minimoe.layers.hyper_connection",
        "return dwritten, dupdate", "return (S * share)[:, None, None, None] * dwritten, dupdate",
        "The streams pass through unchanged, and so must their gradient. Here it is weighted as if they had been "
        "written too, and `input 0` fails.",
    ),
    Mutant(
        "write-equal-shares", "write", "minimoe.layers.hyper_connection",
        "dupdate = (S * share) @ flat", "dupdate = flat.sum(axis=0)",
        "The update's gradient is the plain sum over streams: right at equal weights, where S * share is 1, and wrong "
        "everywhere else. `input 1` fails.",
    ),

    Mutant(
        "block-update-path", "block_linear", "minimoe.layers.block",
        "dh = dupdate + dx", "dh = dx.copy()",
        "h stands in the update and in the norm before the experts, and the first path is dropped. Attention learns "
        "only by way of the experts: it fails, and so does all that lies before it.",
    ),
    Mutant(
        "block-experts-path", "block_sparse", "minimoe.layers.block",
        "dh = dupdate + dx", "dh = dupdate",
        "The other path of h: attention is not told what the experts make of it. The experts are right; attention "
        "fails, and all that lies before it.",
    ),
    Mutant(
        "block-shared-memory", "block_linear", "minimoe.layers.block",
        "dh = dupdate + dx",
        "dh = dx\n"
        "        dh += dupdate",
        "A copy is saved, and dx changes together with dh, as both name one array. x then gets the gradient of the "
        "update, in which it does not stand: `read` and the streams fail.",
    ),
    Mutant(
        "block-attention-skipped", "block_sparse", "minimoe.layers.block",
        "dx += self.attention_norm.backward(", "dx = self.attention_norm.backward(",
        "`=` for `+=`: x goes into attention and into x + h, and only the first gradient is kept. The layers inside "
        "are right; `read` and the streams fail.",
    ),
    Mutant(
        "block-identity-lost", "block_linear", "minimoe.layers.block",
        "return dstreams + self.read_streams.backward(", "return self.read_streams.backward(",
        "The residual path is cut on the way back, and gradient reaches lower blocks only through this one's layers. "
        "All parameters are right; the streams fail.",
    ),
    Mutant(
        "block-read-lost", "block_sparse", "minimoe.layers.block",
        "        return dstreams + self.read_streams.backward(dx, saved.read, grads)",
        "        self.read_streams.backward(dx, saved.read, grads)\n"
        "        return dstreams",
        "The block learns and tells nobody below: only the identity passes gradient down. All parameters are right; "
        "the streams fail.",
    ),

    Mutant(
        "model-lookup-forgotten", "model", "minimoe.model",
        "self.embedding.backward(dstreams.sum(axis=0), saved.embedding, grads)", "pass",
        "The embedding is used twice, as lookup and as head, and only the head's gradient arrives. The matrix does "
        "learn, so that a loss curve does not show it; `embedding.weight` fails.",
    ),
    Mutant(
        "model-head-forgotten", "model", "minimoe.model",
        "dh = self.head.backward(dlogits, saved.head, grads)", "dh = self.head.backward(dlogits, saved.head, {})",
        "The other half of the tied matrix: the head passes gradient on and keeps none, as if frozen. Only "
        "`embedding.weight` fails.",
    ),
    Mutant(
        "model-streams-averaged", "model", "minimoe.model",
        "dstreams.sum(axis=0)", "dstreams.mean(axis=0)",
        "Every stream began as a copy of x, and the gradients of copies add up. The mean is S times too small, half "
        "hidden in `embedding.weight` behind the head's part, which is right.",
    ),
    Mutant(
        "model-blocks-in-forward-order", "model", "minimoe.model",
        "reversed(range(self.lowest_trainable(grads), len(self.blocks)))",
        "range(self.lowest_trainable(grads), len(self.blocks))",
        "Backward goes through the blocks first to last. With a single block nothing would be wrong; with more, all "
        "but the final norm fails.",
    ),
    Mutant(
        "model-balance-of-another-block", "model_training_loss", "minimoe.model",
        "dprobs[i] if dprobs", "dprobs[-1 - i] if dprobs",
        "Each router is handed the load-balance gradient of another block's, as if the list ran the other way. It is "
        "small beside the main loss; routers fail, and all that lies below them.",
    ),
    Mutant(
        "model-balance-not-passed-on", "model_training_loss", "minimoe.layers.block",
        "saved.moe, grads, dprobs)", "saved.moe, grads)",
        "The block takes the gradient of the load-balance loss and does not hand it to its router. Its own check "
        "cannot see that: it takes the whole model, and the loss that is really trained.",
    ),
    Mutant(
        "model-balance-hides-the-loss", "model_training_loss", "minimoe.layers.moe",
        "np.put_along_axis(dlogits, saved.chosen, dchosen, axis=1)\n        if dprobs is not None:",
        "if dprobs is None:\n            np.put_along_axis(dlogits, saved.chosen, dchosen, axis=1)\n        else:",
        "Where the load-balance gradient comes in, the gradient of the weights is left out: the router learns to balance, and "
        "nothing of what the experts are for. Without balance, all is well.",
    ),

    Mutant(
        "cross-entropy-without-target", "cross_entropy", "minimoe.training.losses",
        "np.take_along_axis(dlogits, target, axis=-1) - 1", "np.take_along_axis(dlogits, target, axis=-1)",
        "The gradient is softmax minus one-hot. Without the one-hot every logit is pushed down, and none is ever "
        "pushed up.",
    ),
    Mutant(
        "cross-entropy-plain-mean", "cross_entropy", "minimoe.training.losses",
        "dlogits *= weights[..., None]", "dlogits /= weights.size",
        "The loss weighs each token, and the gradient takes the plain mean over all. The same where all weights are "
        "equal; with padding, or lengths that differ, it belongs to another loss.",
    ),
    Mutant(
        "cross-entropy-not-normalised", "cross_entropy", "minimoe.training.losses",
        "dlogits = np.exp(log_p)", "dlogits = np.exp(logits - logits.max(axis=-1, keepdims=True))",
        "exp(logits - max) is not yet a softmax. Each row is too large by its own sum, and a target that already has "
        "the largest logit gets nothing.",
    ),
    Mutant(
        "cross-entropy-normalised-over-time", "cross_entropy", "minimoe.training.losses",
        "dlogits = np.exp(log_p)", "dlogits = np.exp(log_softmax(logits.swapaxes(1, -1)).swapaxes(1, -1))",
        "The softmax of the gradient runs over positions, that of the loss over the vocabulary. All numbers lie "
        "between 0 and 1 and look like probabilities.",
    ),

    Mutant(
        "policy-gradient-without-temperature", "policy_gradient", "minimoe.training.losses",
        "return loss, dscaled / temperature", "return loss, dscaled",
        "The loss reads logits / temperature, so the way back divides once more. Without it the gradient is too small by "
        "the temperature, in the right direction.",
    ),
    Mutant(
        "policy-gradient-divides-log-probabilities", "policy_gradient", "minimoe.training.losses",
        "cross_entropy(logits / temperature, targets, weights)", "cross_entropy(logits, targets, weights / temperature)",
        "The temperature divides log-probabilities rather than logits. log p / T is not log p_T: what is scored is not the "
        "distribution that was sampled from.",
    ),
    Mutant(
        "policy-gradient-sign", "policy_gradient", "minimoe.training.losses",
        "return loss, dscaled / temperature", "return loss, -dscaled / temperature",
        "A sign: descent on this gradient makes bad samples likelier and good ones rarer.",
    ),
    Mutant(
        "rloo-baseline-includes-the-sample", "rloo", "minimoe.training.losses",
        "others = (rewards.sum() - rewards) / (len(rewards) - 1)", "others = rewards.mean()",
        "A mean that the sample itself is part of moves with its reward, and takes back 1/G of it: the expected gradient is "
        "(G - 1) / G of the true one.",
    ),
    Mutant(
        "rloo-baseline-is-the-best", "rloo", "minimoe.training.losses",
        "others = (rewards.sum() - rewards) / (len(rewards) - 1)", "others = rewards.max()",
        "The best of the group as the baseline: no sample is ever better than it, so nothing is reinforced, only avoided. "
        "It depends on the sample's own reward, and the expected gradient is another one.",
    ),
    Mutant(
        "rloo-divided-by-deviation", "rloo", "minimoe.training.losses",
        "return rewards - others", "return (rewards - others) / (rewards.std() + 1e-4)",
        "Dividing by the group's standard deviation, as GRPO does, weighs groups that nearly agree the most: no longer the "
        "gradient of the expected reward.",
    ),

    Mutant(
        "load-balance-expert-factor", "load_balance", "minimoe.training.losses",
        "share * (E / N)", "share / N",
        "The loss has a factor E, so that it is 1 at perfect balance, and its gradient forgot it. Training sees a "
        "smaller coefficient, and no run would tell.",
    ),
    Mutant(
        "load-balance-rows-not-averaged", "load_balance", "minimoe.training.losses",
        "share * (E / N)", "share * E",
        "P is a mean over N rows, and its gradient forgot to divide. It grows with the batch, until it drowns the "
        "loss that it should only assist.",
    ),
    Mutant(
        "load-balance-factors-swapped", "load_balance", "minimoe.training.losses",
        "np.broadcast_to(share * (E / N), probs.shape)", "np.broadcast_to(probs.mean(axis=0) * (E / N), probs.shape)",
        "The loss is f . P with f a constant, so the gradient of P is f. Here it is P: it still pushes rows away from "
        "crowded experts, and is still not the gradient.",
    ),

    Mutant(
        "adamw-first-moment-uncorrected", "adamw", "minimoe.training.optim",
        "mhat = m / (1 - beta1**self.t)", "mhat = m",
        "The running mean starts at 0 and is too small at first; uncorrected, the first steps are short. By step 50 "
        "next to nothing is left of it, so only a trace from the first step shows it.",
    ),
    Mutant(
        "adamw-second-moment-uncorrected", "adamw", "minimoe.training.optim",
        "vhat = v / (1 - beta2**self.t)", "vhat = v",
        "Too small a mean of squares makes the first step 1 / sqrt(1 - beta2) times too long: 4.5 times at 0.95, just "
        "when the weights are least ready for it.",
    ),
    Mutant(
        "adamw-decay-coupled", "adamw", "minimoe.training.optim",
        "        g = g * scale\n",
        "        g = g * scale + decay * p\n"
        "        decay = 0.0\n",
        "This is Adam with an L2 term: the decay goes through the moments and is divided by sqrt(vhat), so that "
        "weights with large gradients hardly decay. What AdamW is named for is gone.",
    ),
    Mutant(
        "adamw-decay-without-learning-rate", "adamw", "minimoe.training.optim",
        "p -= self.learning_rate * (mhat / (np.sqrt(vhat) + self.eps) + decay * p)",
        "p -= self.learning_rate * (mhat / (np.sqrt(vhat) + self.eps)) + decay * p",
        "One parenthesis: at a learning rate of 3e-4 and a decay of 0.1, each step takes a tenth of every weight "
        "instead of 0.00003 of it.",
    ),
    Mutant(
        "adamw-decay-after-the-step", "adamw", "minimoe.training.optim",
        "p -= self.learning_rate * (mhat / (np.sqrt(vhat) + self.eps) + decay * p)",
        "p -= self.learning_rate * mhat / (np.sqrt(vhat) + self.eps)\n"
        "        p -= self.learning_rate * decay * p",
        "Both terms are to be taken from the old p, and here the decay sees the new one. They differ by the order of "
        "learning_rate^2, which takes a pinned number with enough digits to see.",
    ),
    Mutant(
        "adamw-vectors-decay", "adamw", "minimoe.training.optim",
        "parameter.data.ndim >= 2", "parameter.data.ndim >= 1",
        "Norm gains and stream weights decay like matrices, though a gain has no reason to be near 0. The vector of "
        "the trace fails, its matrix does not.",
    ),
    Mutant(
        "adamw-step-not-counted", "adamw", "minimoe.training.optim",
        "self.t += 1", "self.t = 1",
        "The bias correction of step 1, every time. The first step is right; later ones divide m by 0.1 and v by 0.05 "
        "for good, and grow to about twice their length.",
    ),
    Mutant(
        "adamw-eps-inside-the-root", "adamw", "minimoe.training.optim",
        "np.sqrt(vhat) + self.eps", "np.sqrt(vhat + self.eps)",
        "eps is there for numbers whose gradient is next to 0. Inside the root it weighs like sqrt(eps), 1e-4 instead "
        "of 1e-8, and every gradient smaller than that moves its weight too little.",
    ),

    Mutant(
        "clipping-sum-of-norms", "clipping", "minimoe.training.optim",
        "math.sqrt(sum(float(np.dot(g.reshape(-1), g.reshape(-1))) for g in grads.values()))",
        "sum(math.sqrt(np.dot(g.reshape(-1), g.reshape(-1))) for g in grads.values())",
        "All gradients are one vector, and its length is not the sum of its parts' lengths. Right with a single "
        "tensor; with the model's 134 it clips far too early.",
    ),
    Mutant(
        "clipping-norm-squared", "clipping", "minimoe.training.optim",
        "return math.sqrt(sum(", "return (sum(",
        "The square of the norm, which is the same at exactly 1. With a limit of 1 it clips the same steps, by the "
        "wrong amount.",
    ),
    Mutant(
        "clipping-lengthens", "clipping", "minimoe.training.optim",
        "min(1.0, limit / norm)", "limit / norm",
        "Every gradient is brought to the limit, the short ones too. That is normalising, not clipping: near a "
        "minimum, where gradients fade, steps no longer do.",
    ),
    Mutant(
        "clipping-scale-ignored", "clipping", "minimoe.training.optim",
        "        g = g * scale\n", "",
        "The norm is measured and reported, and the gradient is used as it is. Nothing looks wrong until the batch "
        "comes that clipping is there for.",
    ),
    Mutant(
        "position-unused", "decoding", "minimoe.layers.linear_attention",
        "self.rope.forward(phi, state.position)",
        "self.rope.forward(phi)",
        "Every step is turned as if it were the first. In one step, nothing is wrong.",
    ),
    Mutant(
        "sparse-position-unused", "decoding", "minimoe.layers.sparse_attention",
        "self.rope.forward(qkv[:, :, :2], state.position)",
        "self.rope.forward(qkv[:, :, :2])",
        "Every step is turned as if it were the first. In one step, nothing is wrong.",
    ),
    Mutant(
        "position-by-one", "decoding", "minimoe.layers.linear_attention",
        "state.position + T, kv",
        "state.position + 1, kv",
        "A step counts as one position, however many it read. One position at a time, that is right.",
    ),
    Mutant(
        "sparse-position-by-one", "decoding", "minimoe.layers.sparse_attention",
        "state.position + T, keys",
        "state.position + 1, keys",
        "A step counts as one position, however many it read. One position at a time, that is right.",
    ),
    Mutant(
        "kv-not-carried", "decoding", "minimoe.layers.linear_attention",
        "kv, past, chunks = state.kv, state.z, []",
        "kv, past, chunks = np.zeros_like(state.kv), state.z, []",
        "The numerator forgets the past and the denominator does not: outputs shrink as the text grows.",
    ),
    Mutant(
        "z-not-carried", "decoding", "minimoe.layers.linear_attention",
        "kv, past, chunks = state.kv, state.z, []",
        "kv, past, chunks = state.kv, np.zeros_like(state.z), []",
        "The denominator forgets the past and the numerator does not: outputs grow with the text.",
    ),
    Mutant(
        "only-top-k-kept", "decoding", "minimoe.layers.sparse_attention",
        "SparseState(state.position + T, keys, values)",
        "SparseState(state.position + T, keys[:, -self.top_k :], values[:, -self.top_k :])",
        "The last top_k keys are kept. The best top_k of a later query need not be among them.",
    ),
    Mutant(
        "keys-not-turned", "decoding", "minimoe.layers.sparse_attention",
        "SparseState(state.position + T, keys, values)",
        "SparseState(state.position + T, np.concatenate([state.keys, qkv[:, :, 1]], axis=1), values)",
        "The keys are kept as they were before the rotation, and are not turned later either.",
    ),
    Mutant(
        "rows-not-exchanged", "decoding", "minimoe.layers.layer",
        "array[rows] for array",
        "array[: len(rows)] for array",
        "`take` gives the first rows whichever were asked for: a sample goes on from another one's past.",
    ),
    Mutant(
        "padding-attended", "decoding", "minimoe.layers.sparse_attention",
        "(age >= 0) & (age <= read)",
        "(age >= 0) & (age <= L)",
        "Rows of different lengths: the zeros before a shorter row's first key have the score 0, and get "
        "attention.",
    ),
    Mutant(
        "padded-on-the-right", "decoding", "minimoe.layers.sparse_attention",
        "np.concatenate([np.zeros((len(x), length - x.shape[1], *x.shape[2:]), x.dtype), x], axis=1)",
        "np.concatenate([x, np.zeros((len(x), length - x.shape[1], *x.shape[2:]), x.dtype)], axis=1)",
        "The zeros of a shorter row stand behind its keys, where its latest positions should be.",
    ),
    Mutant(
        "state-changed-in-place", "decoding", "minimoe.layers.linear_attention",
        "state.position + T, kv",
        "np.add(state.position, T, out=state.position), kv",
        "The step counts on in the state that it was given, which somebody may still use: a second step from "
        "it starts too late.",
    ),
]
