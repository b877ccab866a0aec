"""The model against PyTorch's autograd: a second witness, after finite differences, for every backward pass."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from minimoe.config import PRESETS
from minimoe.generate import generate
from minimoe.gradcheck import randomize
from minimoe.model import MiniMoE
from minimoe.tokenizer import EOS
from minimoe.training.objective import BALANCE, pretraining_gradients, sampled_gradients
from minimoe.training.optim import AdamW, clip
from minimoe.training.parallel import Workers, microbatches
from tests import torch_twin

TOLERANCE = 1e-9    # of a tensor's largest number
TEMPERATURE = 0.35
LENGTH = {"micro": 17, "nano": 41}    # more than a chunk, more than the keys that sparse attention keeps
each_preset = pytest.mark.parametrize("preset", ["micro", "nano"])


def pair(folder, preset):
    """One model twice, ours and the twin, which reads the file that ours wrote."""
    model = randomize(MiniMoE(PRESETS[preset], None, np.float64), np.random.default_rng(1))
    model.save_pretrained(folder)
    return model, torch_twin.MiniMoE.from_pretrained(folder, torch.float64)


def draw_ids(preset, rows=6):
    ids = np.random.default_rng(2).integers(0, 260, (rows, LENGTH[preset]))
    ids[:, -2:] = ids[:, :2]                                              # a token that is seen twice
    return ids


def differing(tensors, expected, zero=()):
    """Name the tensors that are not equal to TOLERANCE; those in `zero` must be nothing but rounding on both sides."""
    assert set(tensors) == set(expected)
    names = []
    for name, b in expected.items():
        a = tensors[name].detach().numpy()
        assert a.shape == b.shape and a.dtype == b.dtype == np.float64, name
        largest = np.abs(b).max()
        if name in zero:
            close = max(largest, np.abs(a).max()) < 1e-10
        else:
            close = largest > 1e-6 and np.abs(a - b).max() <= TOLERANCE * largest
        names += [name] * (not close)
    return names


def gradients(model, twin, loss, ids):
    """Both models' loss and gradients by name: (loss, {name: gradient}) of ours, then of the twin."""
    inputs, targets = torch.tensor(ids[:, :-1]), torch.tensor(ids[:, 1:])
    rng = np.random.default_rng(3)
    with Workers(2, model.zero_grads) as workers:
        if loss == "pretraining":
            grads, metrics = pretraining_gradients(model, ids, workers)
            ours = metrics["loss"] + BALANCE * metrics["balance_loss"]
            theirs = 0
            for (part,) in microbatches(torch.tensor(ids)):               # the balance is each microbatch's own
                share = len(part) / len(ids)
                theirs += share * torch_twin.pretraining_loss(*twin(part[:, :-1]), part[:, 1:])
        else:
            weights = rng.standard_normal(targets.shape)
            if loss == "replay":
                solution = weights > 0
                weights = solution / solution.sum()
            temperature = TEMPERATURE if loss == "policy" else 1.0
            grads, ours = sampled_gradients(model, ids, weights, workers, temperature)
            theirs = torch_twin.policy_gradient(twin(inputs)[0], targets, torch.tensor(weights), temperature)
        twin.zero_grad()
        theirs.backward()
        grads = {name: grads[p].copy() for name, p in model.named_parameters()}
    return (ours, grads), (theirs.item(), {name: p.grad for name, p in twin.named_parameters()})


def zero_gradients(config):
    return "blocks.0.read", f"blocks.{config.blocks - 1}.write"


@each_preset
def test_the_file_loads_by_name_and_gives_the_same_logits_and_routing(preset, tmp_path):
    model, twin = pair(tmp_path / "model", preset)
    assert differing(twin.state_dict(), {name: p.data for name, p in model.named_parameters()}) == []
    ids = draw_ids(preset)
    logits, saved = model.forward(ids)
    twin_logits, routed = twin(torch.tensor(ids))
    assert differing({"logits": twin_logits}, {"logits": logits}) == []
    for ours, theirs in zip([block.moe for block in saved.blocks], routed, strict=True):
        assert differing({"probs": theirs.probs}, {"probs": ours.probs}) == []
        assert theirs.counts.tolist() == ours.counts.tolist()


@each_preset
@pytest.mark.parametrize("loss", ["pretraining", "policy", "replay"])
def test_the_loss_and_every_gradient(preset, loss, tmp_path):
    model, twin = pair(tmp_path / "model", preset)
    (ours, grads), (theirs, twin_grads) = gradients(model, twin, loss, draw_ids(preset))
    assert abs(ours - theirs) <= TOLERANCE * abs(ours)
    assert differing(twin_grads, grads, zero_gradients(model.config)) == []


def test_the_comparison_can_fail(tmp_path, monkeypatch):
    """One weight off by a millionth, no rotation, one key more than is kept, an untied head: each is noticed."""
    ids = draw_ids("micro")

    def noticed(twin):
        (_, grads), (_, twin_grads) = gradients(model, twin, "replay", ids)
        return differing(twin_grads, grads, zero_gradients(model.config))

    model, twin = pair(tmp_path / "model", "micro")
    assert noticed(twin) == []
    with torch.no_grad():
        twin.blocks[2].moe.experts.down[1, 3, 2] *= 1 + 1e-6
    assert "embedding.weight" in noticed(twin)

    _, twin = pair(tmp_path / "model", "micro")
    with monkeypatch.context() as patch:
        patch.setattr(torch_twin, "rotate", lambda x, turns: x)
        assert "blocks.0.attention.qkv.weight" in noticed(twin)

    sparse = twin.blocks[3].attention
    sparse.config = type(sparse.config)(**sparse.config.to_dict() | {"sparse_top_k": 6})
    assert "blocks.3.attention.qkv.weight" in noticed(twin)

    _, twin = pair(tmp_path / "model", "micro")
    weight = twin.embedding.weight.detach()
    monkeypatch.setattr(twin, "head", lambda x: twin.final_norm(x.mean(0)) @ weight.T)
    assert noticed(twin) == ["embedding.weight"]


@each_preset
def test_decoding_step_by_step_gives_the_same_logits(preset, tmp_path):
    """A prompt, then one id, then several at once, then one by one."""
    model, twin = pair(tmp_path / "model", preset)
    ids = draw_ids(preset)
    T = ids.shape[1]
    ours, _ = model.forward(ids)
    state, parts = None, []
    for start, end in [(0, 7), (7, 8), (8, T - 4), *((t, t + 1) for t in range(T - 4, T))]:
        logits, state = twin.step(torch.tensor(ids[:, start:end]), state)
        parts.append(logits)
    assert state.position == T
    assert differing({"logits": torch.cat(parts, dim=1)}, {"logits": ours}) == []


def test_greedy_decoding_gives_the_same_ids(tmp_path):
    model, twin = pair(tmp_path / "model", "micro")
    prompts, new = draw_ids("micro")[:, :8], 20
    decoded = torch_twin.decode(twin, torch.tensor(prompts), new).tolist()
    assert [len(ids) for ids in decoded] == [new] * len(prompts)
    for ids, ours in zip(decoded, generate(model, prompts.tolist(), new), strict=True):
        assert ids[: len(ours)] == ours and (len(ours) == new or ours[-1] == EOS)


def torch_clip(norm):
    """The scale by which PyTorch clips: it adds 1e-6 to the norm, lest it divide by zero."""
    return min(1.0, 1 / (norm + 1e-6))


@each_preset
def test_training_steps(preset, tmp_path):
    """Gradient, clipping and AdamW, three times over; one row is one microbatch on both sides.

    A gradient no larger than AdamW's eps magnifies its rounding in the weight, so the steps are short, and the moments
    are compared too.
    """
    model, twin = pair(tmp_path / "model", preset)
    parameters = dict(model.named_parameters())
    optimizer, twin_optimizer = AdamW(parameters, learning_rate=1e-4), torch_twin.adamw(twin, learning_rate=1e-4)
    with Workers(1, model.zero_grads) as workers:
        for ids in draw_ids(preset, rows=3)[:, None]:
            grads, metrics = pretraining_gradients(model, ids, workers)
            norm, _ = clip(parameters, grads, 1.0)
            assert norm > 1                                               # so that clipping is compared too
            optimizer.step(grads, scale=torch_clip(norm))
            loss = torch_twin.train_step(twin, twin_optimizer, torch.tensor(ids))
            assert abs(loss.item() - metrics["loss"] - BALANCE * metrics["balance_loss"]) <= TOLERANCE * loss.item()
    twin_parameters, zero = dict(twin.named_parameters()), zero_gradients(model.config)
    moments = {name: twin_optimizer.state[p] for name, p in twin_parameters.items()}
    assert differing({name: moment["exp_avg"] for name, moment in moments.items()}, optimizer.m, zero) == []
    lengths = {name: np.sqrt(v) for name, v in optimizer.v.items()}
    assert differing({name: moment["exp_avg_sq"].sqrt() for name, moment in moments.items()}, lengths, zero) == []
    for tensors in parameters, twin_parameters:
        for name in zero:
            del tensors[name]
    assert differing(twin_parameters, {name: p.data for name, p in parameters.items()}) == []


def test_microbatches_of_a_step_add_up(tmp_path):
    """With one share of the rows each, as ours; the batch as one microbatch has another balance loss."""
    steps = []
    for parts in 1, 4:
        model, twin = pair(tmp_path / "model", "micro")
        ids = draw_ids("micro", rows=8)
        loss = torch_twin.train_step(twin, torch_twin.adamw(twin), torch.tensor(ids), parts)
        steps.append((loss.item(), twin.blocks[1].moe.router.weight.grad))
    with Workers(1, model.zero_grads) as workers:
        grads, metrics = pretraining_gradients(model, ids, workers)
    norm, _ = clip(dict(model.named_parameters()), grads, 1.0)
    expected = {"router": torch_clip(norm) * grads[model.blocks[1].moe.router.weight]}
    ours = metrics["loss"] + BALANCE * metrics["balance_loss"]
    assert abs(steps[1][0] - ours) <= TOLERANCE * ours < 1e-6 < abs(steps[0][0] - ours)
    assert differing({"router": steps[1][1]}, expected) == []
    assert differing({"router": steps[0][1]}, expected) == ["router"]
