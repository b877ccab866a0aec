import dataclasses

import numpy as np
import pytest

from minimoe.config import PRESETS, ModelConfig
from minimoe.errors import InputError
from minimoe.gradcheck import cases, randomize
from minimoe.layers.layer import Parameter
from minimoe.model import MiniMoE
from minimoe.training.losses import cross_entropy
from tests import oracles

MICRO = PRESETS["micro"]
LAST = f"blocks.{MICRO.blocks - 1}."


def build(dtype=np.float64, seed=0):
    """The micro model, its parameters drawn large enough for every path to matter."""
    model = randomize(MiniMoE(MICRO, None, np.float64), np.random.default_rng(seed))
    for _, p in model.named_parameters():
        p.data = p.data.astype(dtype)
    return model


def draw_ids(*shape, seed=0):
    ids = np.random.default_rng(seed).integers(0, 260, shape)
    ids[:, -2:] = ids[:, :2]                                              # a token that is seen twice
    return ids


def gradients(model, ids, trainable=lambda name: True):
    """The gradients by name, under a random dlogits and dprobs."""
    rng = np.random.default_rng(1)
    logits, saved = model.forward(ids)
    grads = model.zero_grads(trainable)
    dprobs = [rng.standard_normal(block.moe.probs.shape) for block in saved.blocks]
    model.backward(rng.standard_normal(logits.shape), saved, grads, dprobs)
    return {name: grads[p] for name, p in model.named_parameters() if p in grads}


def close(a, b, tolerance=1e-12):
    """Equal to `tolerance` of the largest entry."""
    return a.shape == b.shape and np.abs(a - b).max() <= tolerance * np.abs(b).max()


# sizes and names


def test_parameter_counts():
    assert MiniMoE(PRESETS["full"], None).parameter_counts() == {"total": 25_730_592, "active": 9_805_344}
    # a block of micro: streams 4, norms 24, attention 432 + 144, router 60, experts 840 + 420, shared expert 168 + 84
    assert MiniMoE(MICRO, None).parameter_counts() == {"total": 3120 + 4 * 2176 + 12, "active": 11836 - 4 * 3 * 252}
    # a block of nano: streams 4, norms 128, attention 16384, router 256, 4 experts and 1 shared of 18432 each
    nano = {"total": 16640 + 4 * 108_932 + 64, "active": 452_432 - 4 * 2 * 18_432}
    assert MiniMoE(PRESETS["nano"], None).parameter_counts() == nano


def test_names_and_shapes_of_the_full_model():
    D, V, E, F, S = 192, 260, 8, 384, 4
    block = {
        "read": (S,), "write": (S,), "attention_norm.weight": (D,), "attention.qkv.weight": (3 * D, D),
        "attention.out.weight": (D, D), "ffn_norm.weight": (D,), "moe.router.weight": (E, D),
        "moe.experts.up": (E, 2 * F, D), "moe.experts.down": (E, D, F),
        "moe.shared.up.weight": (2 * F, D), "moe.shared.down.weight": (D, F),
    }
    expected = {"embedding.weight": (V, D), "final_norm.weight": (D,)}
    expected |= {f"blocks.{i}.{name}": shape for i in range(12) for name, shape in block.items()}
    model = MiniMoE(PRESETS["full"], None)
    named = list(model.named_parameters())
    assert {name: p.data.shape for name, p in named} == expected and len(named) == len(expected)
    assert all(p.data.dtype == np.float32 for _, p in named)
    sparse = [i for i, block in enumerate(model.blocks) if type(block.attention).__name__ == "SparseAttention"]
    assert sparse == [3, 7, 11]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"heads": 5}, "heads (5) must divide width (192)"),
        ({"heads": 64}, "width / heads is 3; rotary positions need an even head width"),
        ({"blocks": 0}, "blocks is 0"),
        ({"blocks": 1025}, "blocks is 1025; 1024 are the most"),
        ({"streams": -1}, "streams is -1"),
        ({"width": True}, "width is True"),
        ({"width": 192.0}, "width is 192.0"),
        ({"context": "192"}, "context is '192'"),
        ({"experts": None}, "experts is None"),
        ({"vocabulary": 259}, "vocabulary is 259; the tokenizer needs 260"),
        ({"experts_per_token": 9}, "experts_per_token (9) exceeds experts (8)"),
        ({"layers": 12}, "unknown key 'layers'"),
    ],
)
def test_a_config_refuses_what_makes_no_model(sizes, message):
    with pytest.raises(InputError) as refused:
        ModelConfig.from_dict(ModelConfig().to_dict() | sizes)
    assert message in str(refused.value) and str(refused.value).isprintable()


def test_a_config_is_the_same_after_a_round_trip_and_cannot_be_changed():
    assert all(ModelConfig.from_dict(config.to_dict()) == config for config in PRESETS.values())
    with pytest.raises(InputError, match="missing key 'heads'"):
        ModelConfig.from_dict({name: size for name, size in ModelConfig().to_dict().items() if name != "heads"})
    with pytest.raises(dataclasses.FrozenInstanceError):
        MICRO.width = 24


# forward


@pytest.mark.parametrize("T", [1, 5, 11])
def test_logits_equal_the_oracle(T):
    model, ids = build(), draw_ids(2, T)
    tensors = {name: p.data for name, p in model.named_parameters()}
    assert close(model.forward(ids)[0], oracles.model(ids, tensors, MICRO))


def test_a_new_model_guesses_evenly():
    model = MiniMoE(PRESETS["nano"], np.random.default_rng(0))
    ids = draw_ids(4, 33)
    loss, _ = cross_entropy(model.forward(ids[:, :-1])[0], ids[:, 1:], np.full((4, 32), 1 / 128))
    assert abs(loss - np.log(260)) < 0.05
    scale = {name: p.data.std() for name, p in model.named_parameters() if p.data.ndim > 1}
    assert all(0.018 < std < 0.022 for std in scale.values())


def test_float32_equals_float64():
    ids = draw_ids(2, 11)
    single, double = build(np.float32).forward(ids)[0], build(np.float64).forward(ids)[0]
    assert single.dtype == np.float32 and np.abs(single - double).max() < 1e-4 < np.abs(double).max()


# decoding


def test_rows_of_unequal_length_decode_as_each_alone():
    """Lengths below, at and above the 5 keys that sparse attention keeps, then one id at a time."""
    model, ids, lengths = build(), draw_ids(4, 20), [2, 5, 9, 3]
    whole = [model.forward(row[None])[0][0] for row in ids]
    alone = [model.step(row[None, :n]) for row, n in zip(ids, lengths)]
    state = [type(parts[0]).join(parts) for parts in zip(*(state for _, state in alone))]
    for y, logits, n in zip([y[0] for y, _ in alone], whole, lengths):
        assert close(y, logits[:n])
    for t in range(6):
        y, state = model.step(np.array([row[n + t : n + t + 1] for row, n in zip(ids, lengths)]), state)
        assert all(close(y[r, 0], whole[r][n + t]) for r, n in enumerate(lengths))
        if t == 2:                                                        # a row is done, and the others change places
            ids, lengths, whole = ids[[3, 0, 2]], [lengths[r] for r in (3, 0, 2)], [whole[r] for r in (3, 0, 2)]
            state = [part.take([3, 0, 2]) for part in state]


# gradients


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", ["model", "model_training_loss"])
def test_gradient_of_every_parameter(name, seed):
    report = cases(seed)[name]()
    assert report.passed, report
    assert len(report.rows) == 2 + 11 * MICRO.blocks
    assert [row.tensor for row in report.rows if row.verdict == "zero"] == ["blocks.0.read", "blocks.3.write"]


def test_two_tensors_have_no_gradient():
    """Below the first block all streams are equal; above the last, their mean gains u whatever `write` is."""
    largest = {name: np.abs(g).max() for name, g in gradients(build(), draw_ids(3, 11)).items()}
    assert [name for name, size in largest.items() if size < 1e-11] == ["blocks.0.read", "blocks.3.write"]
    assert min(size for size in largest.values() if size >= 1e-11) > 1e-4


def test_two_microbatches_add_up_to_one_batch():
    model, ids = build(), draw_ids(5, 12)
    weights = np.random.default_rng(0).integers(0, 2, (5, 11)) / 30

    def add(rows, grads):
        logits, saved = model.forward(ids[rows, :-1])
        loss, dlogits = cross_entropy(logits, ids[rows, 1:], weights[rows])
        model.backward(dlogits, saved, grads)
        return loss

    whole, parts = model.zero_grads(), model.zero_grads()
    loss = add(slice(None), whole)
    assert np.isclose(add(slice(0, 2), parts) + add(slice(2, 5), parts), loss, rtol=1e-12)
    zero = {model.blocks[0].read, model.blocks[-1].write}
    assert all(close(parts[p], whole[p]) for p in whole if p not in zero)


def test_the_tied_embedding_gets_both_gradients():
    tied, untied = build(), build()
    untied.head.weight = Parameter(untied.embedding.weight.data.copy())
    ids = draw_ids(2, 11)
    ids[1] = 7                                                            # and a token that fills a row
    both, apart = gradients(tied, ids)["embedding.weight"], gradients(untied, ids)
    head, lookup = apart["head.weight"], apart["embedding.weight"]
    assert close(both, head + lookup) and np.abs(head).max() > 0.1
    assert np.flatnonzero(lookup.any(axis=1)).tolist() == np.unique(ids).tolist()


TOP = [LAST, "final_norm.weight", "embedding.weight"]


@pytest.mark.parametrize("trainable", [TOP, ["embedding"], ["final_norm"], [LAST], ["blocks.1."], [LAST + "write"], []])
def test_what_is_trainable_gets_the_gradient_of_full_backward(trainable, monkeypatch):
    """To the bit; and backward stops at the lowest block that has something to learn."""
    model, ids = build(), draw_ids(2, 11)
    full = gradients(model, ids)
    reached = {"embedding": 0, LAST: 3, "blocks.1.": 1, LAST + "write": 3}
    lowest = min([reached.get(name, 0 if name == "embedding.weight" else 4) for name in trainable], default=4)
    for block in model.blocks[:lowest]:
        monkeypatch.setattr(block, "backward", None)                      # a call would fail
    part = gradients(model, ids, lambda name: name.startswith(tuple(trainable)))
    assert list(part) == [name for name in full if name.startswith(tuple(trainable))]
    assert all(np.array_equal(part[name], full[name]) for name in part)
