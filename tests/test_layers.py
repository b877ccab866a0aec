import pickle
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minimoe.config import ModelConfig
from minimoe.gradcheck import check, projection_and_balance, randomize
from minimoe.layers.block import Block
from minimoe.layers.embedding import Embedding
from minimoe.layers.experts import Expert, Experts
from minimoe.layers.hyper_connection import Read, Write
from minimoe.layers.layer import Layer, Parameter, State
from minimoe.layers.linear import Linear
from minimoe.layers.linear_attention import LinearAttention
from minimoe.layers.moe import MoE
from minimoe.layers.rmsnorm import RMSNorm
from minimoe.layers.rope import Rope
from minimoe.layers.sparse_attention import SparseAttention
from minimoe.model import MiniMoE
from tests import oracles


class Sizes(NamedTuple):
    B: int
    T: int
    D: int
    H: int
    K: int
    E: int
    F: int
    S: int
    chunk: int
    top_k: int
    chosen: int
    seed: int


SIZES = Sizes(B=2, T=11, D=10, H=3, K=4, E=5, F=7, S=6, chunk=4, top_k=5, chosen=2, seed=0)


@st.composite
def sizes(draw):
    """No two sizes are alike, so that a swapped axis cannot hide; T falls below, at and above chunk and top_k."""
    taken = []

    def one_of(*numbers):
        taken.append(draw(st.sampled_from([number for number in numbers if number not in taken])))
        return taken[-1]

    T, K, B, H = one_of(*range(1, 10)), one_of(2, 4, 6), one_of(1, 2, 3), one_of(1, 2, 3, 4)
    D, E, F, S = one_of(*range(5, 10)), one_of(*range(2, 9)), one_of(*range(3, 11)), one_of(*range(2, 10))
    chunk, top_k = draw(st.sampled_from([1, 2, 3, T, T + 1])), draw(st.sampled_from([1, 2, T // 2 + 1, T, T + 1]))
    return Sizes(B, T, D, H, K, E, F, S, chunk, top_k, draw(st.integers(2, E)), draw(st.integers(0, 2**32 - 1)))


def config(s):
    return ModelConfig(
        width=s.H * s.K, heads=s.H, blocks=3, sparse_every=2, chunk_size=s.chunk, sparse_top_k=s.top_k,
        experts=s.E, experts_per_token=s.chosen, expert_width=s.F, streams=s.S,
    )


def linear_attention(s, rng, dtype):
    return LinearAttention(s.D, s.H, s.K, s.chunk, rng, dtype)


def sparse_attention(s, rng, dtype):
    return SparseAttention(s.D, s.H, s.K, s.top_k, rng, dtype)


def moe(s, rng, dtype):
    return MoE(s.D, s.E, s.F, s.chosen, rng, dtype)


def block(attention):
    return lambda s, rng, dtype: Block(s.S, s.D, attention(s, rng, dtype), moe(s, rng, dtype), dtype)


def activations(s, rng):
    return [rng.standard_normal((s.B, s.T, s.D))]


def streams(s, rng):
    return [rng.standard_normal((s.S, s.B, s.T, s.D))]


def rows(s, rng):
    return [rng.standard_normal((s.B * s.T, s.D))]


def routed_rows(s, rng):
    likely = rng.dirichlet(np.full(s.E, 0.5)) + 1e-3                      # some experts get few rows, or none
    chosen = [rng.choice(s.E, s.chosen, replace=False, p=likely / likely.sum()) for _ in range(s.B * s.T)]
    return rows(s, rng) + [rng.uniform(0.2, 1, (s.B * s.T, s.chosen)), np.array(chosen)]


# name: the layer, its inputs, its oracle (sizes, parameters, *inputs)
CASES = {
    "linear": (
        lambda s, rng, dtype: Linear(s.D, s.F, rng, dtype),
        activations,
        lambda s, p, x: oracles.linear(x, p["weight"]),
    ),
    "embedding": (
        lambda s, rng, dtype: Embedding(s.E, s.D, rng, dtype),
        lambda s, rng: [rng.integers(0, s.E, (s.B, s.T))],
        lambda s, p, ids: np.array([[p["weight"][token] for token in row] for row in ids]),
    ),
    "rmsnorm": (
        lambda s, rng, dtype: RMSNorm(s.D, dtype),
        activations,
        lambda s, p, x: oracles.rmsnorm(x, p["weight"]),
    ),
    "rope": (
        lambda s, rng, dtype: Rope(s.K),
        lambda s, rng: [rng.standard_normal((s.B, s.T, s.H, s.K))],
        lambda s, p, x: np.array([[[oracles.rope(v, t) for v in at] for t, at in enumerate(row)] for row in x]),
    ),
    "linear attention": (
        linear_attention,
        activations,
        lambda s, p, x: oracles.linear_attention(x, p["qkv.weight"], p["out.weight"], s.H),
    ),
    "sparse attention": (
        sparse_attention,
        activations,
        lambda s, p, x: oracles.sparse_attention(x, p["qkv.weight"], p["out.weight"], s.H, s.top_k),
    ),
    "expert": (
        lambda s, rng, dtype: Expert(s.D, s.F, rng, dtype),
        rows,
        lambda s, p, x: oracles.expert(x, p["up.weight"], p["down.weight"]),
    ),
    "experts": (
        lambda s, rng, dtype: Experts(s.E, s.D, s.F, rng, dtype),
        routed_rows,
        lambda s, p, x, weights, chosen: oracles.experts(x, weights, chosen, p["up"], p["down"]),
    ),
    "moe": (
        moe,
        activations,
        lambda s, p, x: oracles.moe(x, *p.values(), s.chosen),
    ),
    "read": (
        lambda s, rng, dtype: Read(Parameter(np.zeros(s.S, dtype))),
        streams,
        lambda s, p, x: oracles.read(x, p["weight"]),
    ),
    "write": (
        lambda s, rng, dtype: Write(Parameter(np.zeros(s.S, dtype))),
        lambda s, rng: streams(s, rng) + activations(s, rng),
        lambda s, p, x, update: oracles.write(x, update, p["weight"]),
    ),
    "block, linear": (
        block(linear_attention),
        streams,
        lambda s, p, x: oracles.block(x, p, s.H, None, s.chosen),
    ),
    "block, sparse": (
        block(sparse_attention),
        streams,
        lambda s, p, x: oracles.block(x, p, s.H, s.top_k, s.chosen),
    ),
    "model": (
        lambda s, rng, dtype: MiniMoE(config(s), rng, dtype),
        lambda s, rng: [rng.integers(0, 260, (s.B, s.T))],
        lambda s, p, ids: oracles.model(ids, p, config(s)),
    ),
}
STEPPING = ["linear attention", "sparse attention", "block, linear", "block, sparse", "model"]
ATTENTIONS = {"linear": LinearAttention, "sparse": SparseAttention}


def build(name, s=SIZES, dtype=np.float64):
    """Returns the layer, its parameters drawn large enough for every path to matter, and its inputs."""
    make, inputs, _ = CASES[name]
    rng = np.random.default_rng(s.seed)
    layer = make(s, rng, dtype)
    assert all(p.data.dtype == dtype for _, p in layer.named_parameters())
    randomize(layer, rng)
    for _, p in layer.named_parameters():
        p.data = p.data.astype(dtype)
    return layer, [x.astype(dtype) if x.dtype.kind == "f" else x for x in inputs(s, rng)]


def tensors(layer):
    return {name: p.data for name, p in layer.named_parameters()}


def upstream(layer, y, saved, scale=1):
    """A random dy and, for what has routers, random dprobs."""
    rng = np.random.default_rng(1)

    def like(array):
        return (scale * rng.standard_normal(array.shape)).astype(array.dtype)

    if isinstance(layer, MoE):
        return like(y), {"dprobs": like(saved.probs)}
    if isinstance(layer, Block):
        return like(y), {"dprobs": like(saved.moe.probs)}
    if isinstance(layer, MiniMoE):
        return like(y), {"dprobs": [like(block.moe.probs) for block in saved.blocks]}
    return like(y), {}


def backward(layer, dy, saved, grads, **keywords):
    """The gradients of all inputs that have one, as a list."""
    dx = layer.backward(dy, saved, grads, **keywords)
    return list(dx) if isinstance(dx, tuple) else [] if dx is None else [dx]


def run(layer, inputs, scale=1):
    """Forward and backward: all that comes out, as a list of arrays."""
    y, saved = layer.forward(*inputs)
    dy, keywords = upstream(layer, y, saved, scale)
    grads = layer.zero_grads()
    return [y, *backward(layer, dy, saved, grads, **keywords), *grads.values()]


def arrays(tree):
    """Every array in nested tuples, lists, dicts and states."""
    if isinstance(tree, np.ndarray):
        yield tree
    elif isinstance(tree, State):
        yield from arrays(vars(tree))
    elif isinstance(tree, dict):
        yield from arrays(list(tree.values()))
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            yield from arrays(item)



def freeze(tree):
    for array in arrays(tree):
        array.flags.writeable = False


def same_bits(a, b):
    return len(a) == len(b) and all(x.dtype == y.dtype and np.array_equal(x, y) for x, y in zip(a, b))


def close(a, b, tolerance=1e-12):
    """Equal to `tolerance` of the largest entry."""
    a, b = np.asarray(a), np.asarray(b)
    assert a.shape == b.shape
    return np.abs(a - b).max(initial=0) <= tolerance * max(np.abs(b).max(initial=0), 1e-300)


def time_axis(name):
    return 2 if name.startswith("block") else 1


each_layer = pytest.mark.parametrize("name", CASES)
each_stepping_layer = pytest.mark.parametrize("name", STEPPING)
each_attention = pytest.mark.parametrize("kind", ATTENTIONS)


@each_layer
@settings(max_examples=10)
@given(s=sizes())
def test_output_equals_the_oracle(name, s):
    layer, inputs = build(name, s)
    assert close(layer.forward(*inputs)[0], CASES[name][2](s, tensors(layer), *inputs))


@pytest.mark.parametrize("name", [name for name in CASES if name != "model"])     # the model's is in test_model.py
@settings(max_examples=10)
@given(s=sizes())
def test_gradient(name, s):
    layer, inputs = build(name, s)
    report = check(layer, *inputs, coordinates=2, seed=s.seed)
    assert report.passed, report


# the protocol


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@each_layer
def test_the_dtype_of_the_parameters_is_the_dtype_of_everything(name, dtype):
    layer, inputs = build(name, dtype=dtype)
    _, saved = layer.forward(*inputs)
    kinds = {"f": dtype, "c": np.result_type(dtype, np.complex64)}
    for array in [*run(layer, inputs), *arrays(saved)]:
        assert array.dtype == kinds.get(array.dtype.kind, array.dtype)
    if name in STEPPING:
        y, state = layer.step(*inputs, None)
        after, later = layer.step(*inputs, state)
        for array in [y, after, *arrays(state), *arrays(later)]:
            assert array.dtype == kinds.get(array.dtype.kind, array.dtype)


@each_layer
def test_forward_and_backward_are_pure(name):
    """Twice gives the same bits, no argument is written to (NumPy refuses), and the layer keeps nothing."""
    layer, inputs = build(name)
    freeze([*inputs, *tensors(layer).values()])
    before = pickle.dumps(layer)
    y, saved = layer.forward(*inputs)
    again, _ = layer.forward(*inputs)
    assert same_bits([y], [again])
    dy, keywords = upstream(layer, y, saved)
    freeze([saved, dy, keywords])
    once, twice = layer.zero_grads(), layer.zero_grads()
    dinputs = [dx.copy() for dx in backward(layer, dy, saved, once, **keywords)]
    assert same_bits(dinputs, backward(layer, dy, saved, twice, **keywords))
    assert same_bits(list(once.values()), list(twice.values()))
    assert pickle.dumps(layer) == before


@each_layer
def test_the_order_of_arrays_in_memory_changes_nothing(name):
    layer, inputs = build(name)
    y, saved = layer.forward(*inputs)
    dy, keywords = upstream(layer, y, saved)
    results = []
    for ordered in (np.ascontiguousarray, np.asfortranarray):
        y, saved = layer.forward(*map(ordered, inputs))
        grads = layer.zero_grads()
        results.append([y, *backward(layer, ordered(dy), saved, grads, **keywords), *grads.values()])
    assert all(close(b, a) for a, b in zip(*results, strict=True))


@each_layer
def test_two_forwards_before_two_backwards(name):
    layer, inputs = build(name)
    others = build(name, SIZES._replace(seed=2))[1]
    y, saved = layer.forward(*inputs)
    other, other_saved = layer.forward(*others)
    results = []
    for y, saved in [(other, other_saved), (y, saved)]:
        dy, keywords = upstream(layer, y, saved)
        grads = layer.zero_grads()
        results.append([y, *backward(layer, dy, saved, grads, **keywords), *grads.values()])
    assert same_bits(results[0], run(layer, others)) and same_bits(results[1], run(layer, inputs))
    assert not same_bits(*results)


@each_layer
def test_backward_adds(name):
    layer, inputs = build(name)
    y, saved = layer.forward(*inputs)
    dy, keywords = upstream(layer, y, saved)
    once, twice = layer.zero_grads(), layer.zero_grads()
    backward(layer, dy, saved, once, **keywords)
    for _ in range(2):
        backward(layer, dy, saved, twice, **keywords)
    assert all(close(twice[p], 2 * once[p], 1e-10) for p in once)


@each_layer
def test_zero_upstream_gives_exactly_zero(name):
    layer, inputs = build(name)
    y, *gradients = run(layer, inputs, scale=0)
    assert y.any() and not any(gradient.any() for gradient in gradients)


@each_layer
def test_a_frozen_parameter_changes_nothing_else(name):
    layer, inputs = build(name)
    y, saved = layer.forward(*inputs)
    dy, keywords = upstream(layer, y, saved)
    full = layer.zero_grads()
    dinputs = backward(layer, dy, saved, full, **keywords)
    names = [name for name, _ in layer.named_parameters()]
    for frozen in [*([name] for name in names), names]:
        grads = layer.zero_grads(lambda name: name not in frozen)
        rest = [full[p] for p in grads]
        dagain = backward(layer, dy, saved, grads, **keywords)
        assert len(grads) == len(full) - len(frozen)
        assert same_bits(list(grads.values()), rest)
        assert same_bits(dagain, dinputs)


@pytest.mark.parametrize("name", ["expert", "linear attention", "sparse attention", "moe", "read", "write"])
def test_large_numbers_do_not_overflow(name):
    """A softmax that did not subtract the largest, or a sigmoid of -10,000, would give infinity or NaN in float32."""
    layer, inputs = build(name, dtype=np.float32)
    if name in ("read", "write"):
        layer.weight.data *= 1000
    else:
        inputs = [x * np.float32(1e4) for x in inputs]
    assert all(np.isfinite(array).all() for array in run(layer, inputs))


def extreme(kind, x):
    """An input of the shape and dtype of x."""
    tiny = np.finfo(x.dtype).smallest_subnormal
    return {
        "zeros": np.zeros_like(x),
        "equal rows": np.tile(x.reshape(-1, x.shape[-1])[0], (*x.shape[:-1], 1)),
        "1e4": x * x.dtype.type(1e4),
        "-1e4": np.full_like(x, -1e4),
        "subnormal": np.sign(x) * 1000 * tiny,
    }[kind]


each_extreme = pytest.mark.parametrize("kind", ["zeros", "equal rows", "1e4", "-1e4", "subnormal"])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@each_extreme
@each_layer
def test_extreme_inputs_give_finite_numbers(name, kind, dtype):
    layer, inputs = build(name, dtype=dtype)
    inputs = [extreme(kind, x) if x.dtype.kind == "f" else x for x in inputs]
    assert all(np.isfinite(array).all() for array in run(layer, inputs))


@each_extreme
@pytest.mark.parametrize("name", ["linear", "rmsnorm", "rope", "linear attention", "sparse attention", "expert", "moe", "read", "write"])
def test_gradient_at_extreme_inputs(name, kind, monkeypatch):
    """Of the inputs; beside zeros a norm bends within 1e-3, so h is smaller there. At a tie of the router there is none."""
    if kind in ("zeros", "subnormal"):
        monkeypatch.setattr("minimoe.gradcheck.STEP", 1e-6)
        if name in ("expert", "moe") or (name, kind) == ("sparse attention", "subnormal"):
            pytest.skip("no gradient, or a tie")
    layer, inputs = build(name)
    report = check(layer, *(extreme(kind, x) for x in inputs), coordinates=3)
    for row in report.rows:
        if row.tensor.startswith("input"):
            assert row.verdict == "ok", report


# time


@each_stepping_layer
def test_steps_equal_forward_at_every_split(name):
    layer, [x] = build(name)
    axis = time_axis(name)
    whole, last = layer.step(x, None)
    assert close(whole, layer.forward(x)[0])
    for t in range(1, SIZES.T):
        first, rest = np.split(x, [t], axis)
        y, state = layer.step(first, None)
        freeze([state, rest])                                             # the state is the caller's
        before = pickle.dumps(layer)
        after, end = layer.step(rest, state)
        assert pickle.dumps(layer) == before
        assert close(np.concatenate([y, after], axis), whole)
        assert all(map(close, arrays(end), arrays(last)))
        assert same_bits([after], [layer.step(rest, state)[0]])


@each_stepping_layer
def test_one_position_at_a_time(name):
    layer, [x] = build(name)
    axis = time_axis(name)
    state, steps = None, []
    for part in np.split(x, SIZES.T, axis):
        y, state = layer.step(part, state)
        steps.append(y)
    assert close(np.concatenate(steps, axis), layer.forward(x)[0])


@each_attention
def test_rows_of_different_lengths_go_on_as_each_alone(kind):
    """Top-k keeps 5 keys of rows that have read 3 and 9: what pads the shorter row must never be chosen."""
    rng = np.random.default_rng(0)
    layer = randomize(ATTENTIONS[kind](10, 3, 4, 5, rng, np.float64), rng)
    lengths, rows = [3, 9, 1], [rng.standard_normal((1, 20, 10)) for _ in range(3)]
    states = [layer.step(x[:, :length], None)[1] for x, length in zip(rows, lengths)]
    joined = type(states[0]).join(states)
    for order in [0, 1, 2], [1, 0, 1]:
        state, read = joined.take(order), [lengths[i] for i in order]
        for t in 1, 4, 1:
            y, state = layer.step(np.concatenate([rows[i][:, n : n + t] for i, n in zip(order, read)]), state)
            read = [n + t for n in read]
            alone = [layer.forward(rows[i][:, :n])[0][0, -t:] for i, n in zip(order, read)]
            assert close(y, alone) and state.position.tolist() == read


# linear attention


@pytest.mark.parametrize("T", [1, 2, 3, 7])
def test_chunk_sizes_agree(T):
    rng = np.random.default_rng(0)
    x, results = rng.standard_normal((2, T, 10)), []
    for chunk in 1, 2, 3, T, T + 1, 64:
        layer = randomize(LinearAttention(10, 3, 4, chunk, None, np.float64), np.random.default_rng(0))
        results.append([*run(layer, [x]), *arrays(layer.step(x, None)[1])])
    for result in results[1:]:
        assert all(map(close, result, results[0]))


def test_linear_attention_by_hand():
    """phi(q_1) = (2,2), phi(k_0) = (3,3), phi(k_1) = (1,1), turned by one radian a position in the numerator alone."""
    layer = LinearAttention(5, 1, 2, 64, None, np.float64)
    layer.qkv.weight.data = np.array([[1, 0, 0, 0, 0]] * 2 + [[0, 1, 0, 0, 0]] * 2 + [[0, 0, 1, 0, 0], [0, 0, 0, 1, 0]])
    layer.out.weight.data = np.eye(5, 2)
    v0, v1 = np.array([1.0, 5.0]), np.array([-2.0, 3.0])
    x = np.array([[[0, 2, *v0, 9], [1, 0, *v1, 9]]])
    expected = (12 * np.cos(1) * v0 + 4 * v1) / (2 * 2 * (3 + 1) + 1e-6)
    assert close(layer.forward(x)[0][0, 1], [*expected, 0, 0, 0])


def test_sixteen_thousand_positions():
    rng = np.random.default_rng(0)
    layer = LinearAttention(12, 3, 4, 32, rng, np.float32)
    x = rng.standard_normal((1, 2**14, 12)).astype(np.float32)
    y, saved = layer.forward(x)
    grads = layer.zero_grads()
    dx = layer.backward(np.ones_like(y), saved, grads)
    assert all(np.isfinite(array).all() for array in (y, dx, *grads.values()))
    _, state = layer.step(x[:, : 2**13 + 5], None)
    assert close(layer.step(x[:, 2**13 + 5 :], state)[0], y[:, 2**13 + 5 :], 1e-4)


@pytest.mark.parametrize("level", [-20, -40])
def test_linear_attention_does_not_lose_small_keys(level):
    """In float32, expm1(x) + 1 is 0 at -20, and at -40 a denominator without 1e-6 makes gradients infinite."""
    rng = np.random.default_rng(0)
    layer = randomize(LinearAttention(10, 3, 4, 4, rng, np.float64), rng)
    layer.qkv.weight.data[: 2 * 12] = level * np.eye(10)[0]               # q and k read channel 0
    x = rng.standard_normal((2, 11, 10))
    x[..., 0] = 1
    exact = run(layer, [x])
    for _, p in layer.named_parameters():
        p.data = p.data.astype(np.float32)
    for single, double in zip(run(layer, [x.astype(np.float32)]), exact, strict=True):
        assert single.dtype == np.float32 and np.isfinite(single).all() and double.any()
        assert close(single, double, 1e-4)


# sparse attention


@pytest.mark.parametrize("top_k", [1, 2, 4])
def test_lengths_up_to_and_past_top_k(top_k):
    for T in range(1, top_k + 3):
        layer, [x] = build("sparse attention", SIZES._replace(T=T, top_k=top_k))
        qkv, out = tensors(layer).values()
        y, dense = layer.forward(x)[0], oracles.dense_attention(x, qkv, out, SIZES.H)
        assert close(y, oracles.sparse_attention(x, qkv, out, SIZES.H, top_k))
        assert close(y, dense) == (T <= top_k)
        report = check(layer, x, coordinates=3)
        assert report.passed, report


def test_top_k_of_every_length_that_holds_all_keys_is_the_same():
    results = [run(*build("sparse attention", SIZES._replace(top_k=top_k))) for top_k in (11, 12, 1000)]
    assert same_bits(results[0], results[1]) and same_bits(results[0], results[2])


def see_weights(strengths, top_k):
    """The attention weights (T,T) where key s scores about strengths[s]: values are one-hot, and `out` shows them."""
    T = len(strengths)
    layer = SparseAttention(T + 2, 1, 16, top_k, None, np.float64)
    x = np.zeros((1, T, T + 2))
    x[0, :, 0], x[0, :, 1], x[0, :, 2:] = 1, strengths, np.eye(T)
    qkv, out = np.zeros((3, 16, T + 2)), np.zeros((T + 2, 16))
    qkv[0, 14, 0] = qkv[1, 14, 1] = 2                                     # q and k lie in the pair that turns least
    qkv[2, :T, 2:] = out[:T, :T] = np.eye(T)
    layer.qkv.weight.data, layer.out.weight.data = qkv.reshape(48, -1), out
    return layer.forward(x)[0][0, :, :T]


def test_ties_at_the_threshold_all_stay():
    p = see_weights([0, 3, 0, -1, 0, -2, 2, 0], top_k=3)                  # the third largest is one of many zeros
    assert (p[7] > 0).tolist() == [True, True, True, False, True, False, True, True]
    assert len(set(p[7, [0, 2, 4, 7]])) == 1 and close(p.sum(axis=1), np.ones(8))
    assert (p[4] > 0).tolist() == [True, True, True, False, True, False, False, False]
    assert close(see_weights(np.zeros(8), top_k=1), np.tri(8) / np.arange(1, 9)[:, None])


def test_an_untied_top_k_keeps_k():
    p = see_weights([5, -4, 3, -2, 1, 0], top_k=2)
    assert [np.flatnonzero(row).tolist() for row in p] == [[0], [0, 1], [0, 2], [0, 2], [0, 2], [0, 2]]


# rotary positions


def test_rope_by_hand():
    """Width 4: pair (0,1) turns by 1 radian a position, pair (2,3) by 0.01."""
    x = np.array([1.0, 0, 0, 1] * 3).reshape(1, 3, 1, 4)
    y, saved = Rope(4).forward(x)
    expected = [
        [1, 0, 0, 1],
        [0.5403023058681398, 0.8414709848078965, -0.009999833334166664, 0.9999500004166653],
        [-0.4161468365471424, 0.9092974268256817, -0.01999866669333308, 0.9998000066665778],
    ]
    assert close(y[0, :, 0], expected, 1e-15) and (y[0, 0] == x[0, 0]).all()


def test_the_wavelength_of_every_pair():
    K = 32
    x = np.tile([1.0, 0.0], (1, 2, K // 2)).reshape(1, 2, K)
    turned = Rope(K).forward(x)[0][0, 1].reshape(-1, 2)
    angles = np.arctan2(turned[:, 1], turned[:, 0])                       # of one position
    assert np.allclose(2 * np.pi / angles, [2 * np.pi * 10000 ** (2 * i / K) for i in range(K // 2)], rtol=1e-10)


def test_scores_depend_on_distance_alone():
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((2, 2, 7, 3, 6))
    rope = Rope(6)

    def scores(first):
        return np.einsum("bthk,bshk->bhts", rope.forward(q, first)[0], rope.forward(k, first)[0])

    assert close(scores(150), scores(0)) and close(scores(np.array([3, 90])), scores(0))
    assert not close(np.einsum("bthk,bshk->bhts", rope.forward(q, 1)[0], rope.forward(k, 0)[0]), scores(0), 1e-3)


@pytest.mark.parametrize("first", [0, 5, np.array([0, 4])], ids=str)
def test_backward_of_rope_is_the_inverse_rotation(first):
    rope, x = Rope(6), np.random.default_rng(0).standard_normal((2, 7, 3, 6))
    y, saved = rope.forward(x, first)
    assert close(rope.backward(y, saved, {}), x) and not close(y, x, 0.1)


def test_rope_at_an_offset_after_offset_0():
    rope, x = Rope(6), np.random.default_rng(0).standard_normal((2, 7, 3, 6))
    whole, _ = rope.forward(x)
    start, _ = rope.forward(x[:, :5])
    rest, _ = rope.forward(x[:, 5:], 5)
    assert close(np.concatenate([start, rest], axis=1), whole)
    rows, _ = rope.forward(x[:, 5:], np.array([5, 2]))
    assert close(rows[0], rest[0]) and close(rows[1], rope.forward(x[1:, 5:], 2)[0][0])


# mixture of experts


@pytest.mark.parametrize("k", [1, SIZES.E])
def test_one_expert_a_row_and_all_of_them(k):
    s = SIZES._replace(chosen=k)
    layer, [x] = build("moe", s)
    y, saved = layer.forward(x)
    assert close(y, CASES["moe"][2](s, tensors(layer), x)) and saved.counts.sum() == k * s.B * s.T
    assert check(layer, x, zero=["router.weight"] * (k == 1)).passed      # one expert's weight is always 1
    objective = projection_and_balance(np.random.default_rng(0).standard_normal(y.shape), 3.0)
    assert check(layer, x, objective=objective).passed                    # the balance loss still teaches its router


def test_the_router_learns_from_the_weights_of_two():
    layer, [x] = build("moe")
    y, saved = layer.forward(x)
    grads = layer.zero_grads()
    layer.backward(np.random.default_rng(0).standard_normal(y.shape), saved, grads)
    assert (np.abs(grads[layer.router.weight]).max(axis=1) > 1e-2).all()


def route(router, x, k=2):
    """Returns the layer, its output and what it saved, the router given."""
    E, D = np.shape(router)
    rng = np.random.default_rng(0)
    layer = randomize(MoE(D, E, 7, k, rng, np.float64), rng)
    layer.router.weight.data = np.array(router, float)
    x = np.array(x, float)[None]
    y, saved = layer.forward(x)
    assert close(y, oracles.moe(x, *tensors(layer).values(), k))
    assert np.array_equal(saved.counts, np.bincount(saved.chosen.ravel(), minlength=E))
    assert close(saved.probs, [oracles.softmax(v @ layer.router.weight.data.T) for v in x[0]])
    return layer, x, y, saved


def test_all_negative_logits():
    """A masked zero must not win."""
    _, _, _, saved = route([[-3, 0], [-1, -2], [-7, -7], [-2, -1], [-9, -9]], [[1, 1], [2, 1], [1, 2]])
    assert saved.chosen.tolist() == [[0, 1], [1, 3], [0, 3]]


def test_ties_go_to_the_lower_index():
    """Small whole numbers make the logits exact."""
    _, _, _, saved = route([[0, 1], [2, 0], [0, 2], [2, 0], [0, 2]], [[1, 0], [0, 1], [1, 1], [-1, -1]])
    assert saved.chosen.tolist() == [[1, 3], [2, 4], [1, 2], [0, 1]]


def test_an_all_zero_router_is_sound():
    layer, x, y, saved = route(np.zeros((5, 3)), np.random.default_rng(1).standard_normal((6, 3)))
    assert saved.chosen.tolist() == [[0, 1]] * 6 and close(saved.probs, np.full((6, 5), 0.2))
    assert all(np.isfinite(array).all() for array in run(layer, [x]))


@pytest.mark.parametrize("k", [1, 2])
def test_every_row_to_the_same_experts(k):
    """The others get no row, and no gradient."""
    router = [[0, 0, 0], [4, 0, 0], [-1, 0, 0], [9, 0, 0], [-2, 0, 0]]
    layer, x, y, saved = route(router, [[1, 0, 2], [2, 1, -1], [1, -3, 1], [3, 1, 1]], k)
    assert saved.counts.tolist() == [0, 4 * (k - 1), 0, 4, 0]
    grads = layer.zero_grads()
    layer.backward(np.ones_like(y), saved, grads)
    for p in layer.experts.up, layer.experts.down:
        assert np.array_equal(grads[p].any(axis=(1, 2)), saved.counts > 0)
    assert check(layer, x, zero=["router.weight"] * (k == 1)).passed


# hyper-connections


def test_equal_weights_are_a_plain_residual_network():
    rng = np.random.default_rng(0)
    blocks = [build(name)[0] for name in ("block, linear", "block, sparse")]
    for block in blocks:
        block.read.data, block.write.data = np.full((2, SIZES.S), 0.7)
    streams = rng.standard_normal((SIZES.S, 2, 11, 10))
    x = streams.mean(axis=0)
    for block in blocks:
        streams, _ = block.forward(streams)
        h, _ = block.attention.forward(block.attention_norm.forward(x)[0])
        x = x + h
        x = x + block.moe.forward(block.ffn_norm.forward(x)[0])[0]
        assert close(streams.mean(axis=0), x)


def test_a_blocks_stream_weights_start_unequal():
    block = CASES["block, linear"][0](SIZES, np.random.default_rng(0), np.float64)
    assert close(block.read.data, [0.1, 0.06, 0.02, -0.02, -0.06, -0.1])
    assert close(block.write.data, [-0.1, -0.06, -0.02, 0.02, 0.06, 0.1])


# finding parameters


def test_a_shared_parameter_is_one_and_its_gradients_add_up():
    class Twice(Layer):
        def __init__(self):
            self.first = Linear(5, 5, np.random.default_rng(0), np.float64)
            self.rest = [Linear(5, 5, None, np.float64, weight=self.first.weight), RMSNorm(5, np.float64)]

        def forward(self, x):
            saved = []
            for layer in [self.first, *self.rest]:
                x, kept = layer.forward(x)
                saved.append(kept)
            return x, saved

        def backward(self, dx, saved, grads):
            for layer, kept in zip([*self.rest[::-1], self.first], saved[::-1]):
                dx = layer.backward(dx, kept, grads)
            return dx

    twice = randomize(Twice(), np.random.default_rng(0))
    assert [name for name, _ in twice.named_parameters()] == ["first.weight", "rest.1.weight"]
    report = check(twice, np.random.default_rng(0).standard_normal((3, 5)))
    assert report.passed, report
