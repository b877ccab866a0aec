import errno
import json
import os
from dataclasses import replace

import numpy as np
import pytest
from safetensors import safe_open

from minimoe.config import PRESETS
from minimoe.errors import InputError
from minimoe.model import MiniMoE
from minimoe.training.checkpoint import load_moments, load_run, save_training
from minimoe.training.optim import AdamW

CONFIG = PRESETS["micro"]
IDS = np.array([[1, 20, 30, 20]])


def make(seed=0, dtype=np.float32, config=CONFIG):
    model = MiniMoE(config, np.random.default_rng(seed), dtype)
    return model, AdamW(dict(model.named_parameters()), 0.01)


def trained(updates, seed=0):
    model, optimizer = make(seed)
    rng = np.random.default_rng(7)
    for _ in range(updates):
        optimizer.step({p: rng.standard_normal(p.data.shape).astype(np.float32) for _, p in model.named_parameters()})
    return model, optimizer


def bits(model, optimizer=None):
    """All that a checkpoint must keep."""
    tensors = [(name, p.data) for name, p in model.named_parameters()]
    if optimizer:
        tensors += [*optimizer.m.items(), *optimizer.v.items()]
    return [(name, array.dtype, array.shape, array.tobytes()) for name, array in tensors]


def message(error):
    """One line, without escapes that would make it several."""
    assert str(error.value).isprintable()
    return str(error.value)


def edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_a_training_checkpoint_brings_back_every_bit(tmp_path):
    model, optimizer = trained(3)
    save_training(tmp_path / "last", model, optimizer, 7, {"settings": {"seed": 5, "learning_rate": 0.1}})
    again = MiniMoE.from_pretrained(tmp_path / "last")
    loaded = AdamW(dict(again.named_parameters()), 0.01)
    load_moments(tmp_path / "last", loaded)
    assert bits(again, loaded) == bits(model, optimizer) and loaded.t == 3 and again.config == CONFIG
    assert load_run(tmp_path / "last") == {"step": 7, "updates": 3, "settings": {"seed": 5, "learning_rate": 0.1}}

    for m, o in (model, optimizer), (again, loaded):                      # the next step is that of a run never stopped
        o.step({p: np.full_like(p.data, 0.5) for _, p in m.named_parameters()})
    assert bits(again, loaded) == bits(model, optimizer)


def test_a_model_alone_comes_back_too_from_a_subfolder_as_well(tmp_path):
    model, _ = trained(2)
    model.save_pretrained(tmp_path / "runs" / "step-0002")
    direct = MiniMoE.from_pretrained(tmp_path / "runs" / "step-0002")
    below = MiniMoE.from_pretrained(str(tmp_path / "runs"), subfolder="step-0002")
    assert bits(direct) == bits(below) == bits(model)
    np.testing.assert_array_equal(direct.forward(IDS)[0], model.forward(IDS)[0])
    names = sorted(path.name for path in (tmp_path / "runs" / "step-0002").iterdir())
    assert names == ["config.json", "model.safetensors"]


def test_saved_names_are_those_of_the_parameters_and_the_tied_head_is_stored_once(tmp_path):
    model, _ = make()
    model.save_pretrained(tmp_path / "model")
    with safe_open(tmp_path / "model" / "model.safetensors", framework="numpy") as file:
        saved = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}
    assert saved == {name: p.data.shape for name, p in model.named_parameters()}
    V, D, F = CONFIG.vocabulary, CONFIG.width, CONFIG.expert_width
    assert [name for name, shape in saved.items() if V in shape] == ["embedding.weight"]
    assert not [name for name in saved if "head" in name]
    assert saved["embedding.weight"] == (V, D)                            # matrices as (out, in), gate before value
    assert saved["blocks.0.attention.qkv.weight"] == (3 * D, D)
    assert saved["blocks.3.moe.experts.up"] == (CONFIG.experts, 2 * F, D)
    assert saved["blocks.3.moe.experts.down"] == (CONFIG.experts, D, F)
    loaded = MiniMoE.from_pretrained(tmp_path / "model")
    assert loaded.head.weight is loaded.embedding.weight


@pytest.mark.parametrize("dtypes", [(np.float32, np.float64), (np.float64, np.float32)])
def test_the_reader_chooses_the_dtype(tmp_path, dtypes):
    stored, wanted = dtypes
    model, _ = make(dtype=stored)
    model.save_pretrained(tmp_path / "model")
    loaded = MiniMoE.from_pretrained(tmp_path / "model", dtype=wanted)
    for (_, p), (name, q) in zip(model.named_parameters(), loaded.named_parameters(), strict=True):
        assert q.data.dtype == wanted
        np.testing.assert_array_equal(q.data, p.data.astype(wanted), err_msg=name)
    assert loaded.forward(IDS)[0].dtype == wanted


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ({"width": 24}, r"tensor '\S+' has shape \(.*12.*\), expected \(.*24.*\)"),
        ({"width": 96}, r"has [\d,]+ bytes, too few for the [\d,]+ numbers that config.json beside it asks for"),
        ({"width": 6}, r"tensor '\S+' has shape \(.*12.*\), expected \(.*6.*\)"),
        ({"blocks": 5}, r"lacks the tensor 'blocks\.4\.\S+'"),
        ({"blocks": 3}, r"has a tensor 'blocks\.3\.\S+' too many"),
        ({"experts": 6}, r"tensor '\S+\.moe\.\S+' has shape \(5, .*\), expected \(6, .*\)"),
        ({"streams": 3}, r"tensor '\S+\.(read|write)' has shape \(2,\), expected \(3,\)"),
    ],
)
def test_a_config_that_contradicts_the_tensors_is_refused(tmp_path, sizes, says):
    make()[0].save_pretrained(tmp_path / "model")
    edit(tmp_path / "model" / "config.json", lambda config: config.update(sizes))
    with pytest.raises(InputError, match=says) as error:
        MiniMoE.from_pretrained(tmp_path / "model")
    assert message(error).startswith(str(tmp_path / "model" / "model.safetensors"))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda config: config.update(layers=4), "layers"),
        (lambda config: config.pop("streams"), "streams"),
        (lambda config: config.update(width="12"), "width"),
        (lambda config: config.update(experts=True), "experts"),
        (lambda config: config.update(heads=5), "heads"),
        (lambda config: config.update(blocks=0), "blocks"),
    ],
    ids=["unknown", "missing", "text", "truth", "indivisible", "zero"],
)
def test_a_config_that_makes_no_model_is_refused(tmp_path, change, named):
    make()[0].save_pretrained(tmp_path / "model")
    edit(tmp_path / "model" / "config.json", change)
    with pytest.raises(InputError) as error:
        MiniMoE.from_pretrained(tmp_path / "model")
    assert message(error).startswith(str(tmp_path / "model" / "config.json")) and named in message(error)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "optimizer.safetensors", "run.json"])
@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_file_that_is_missing_or_cut_is_named(tmp_path, name, damage):
    save_training(tmp_path / "last", *make(), 7, {})
    path = tmp_path / "last" / name
    content = path.read_bytes()
    path.unlink()
    if damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    _, optimizer = make()
    with pytest.raises(InputError) as error:
        MiniMoE.from_pretrained(tmp_path / "last")
        load_moments(tmp_path / "last", optimizer)
    assert str(path) in message(error)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError) as error:
        MiniMoE.from_pretrained(tmp_path / "nothing", "step-0001")
    assert str(tmp_path / "nothing" / "step-0001" / "config.json") in message(error)
    assert list(tmp_path.iterdir()) == []


def test_moments_of_another_model_are_refused(tmp_path):
    save_training(tmp_path / "last", *make(config=replace(CONFIG, experts=4)), 7, {})
    _, optimizer = make()
    with pytest.raises(InputError) as error:
        load_moments(tmp_path / "last", optimizer)
    assert str(tmp_path / "last" / "optimizer.safetensors") in message(error) and "m.blocks.0.moe" in message(error)
    assert optimizer.t == 0 and not any(m.any() for m in optimizer.m.values())


def test_moments_that_no_run_has_are_refused(tmp_path):
    model, optimizer = trained(2)
    optimizer.v["blocks.1.read"][1] = -1e-12                              # a bit flipped: the next step would be NaN
    save_training(tmp_path / "last", model, optimizer, 7, {})
    with pytest.raises(InputError, match="'v.blocks.1.read'") as error:
        load_moments(tmp_path / "last", make()[1])
    assert message(error).startswith(str(tmp_path / "last" / "optimizer.safetensors"))


def test_more_updates_than_steps_are_refused(tmp_path):
    save_training(tmp_path / "last", *trained(3), 3, {})
    assert load_run(tmp_path / "last")["updates"] == 3
    save_training(tmp_path / "last", *trained(3), 2, {})
    with pytest.raises(InputError, match="more updates, 3, than steps, 2"):
        load_run(tmp_path / "last")


@pytest.mark.parametrize("read", [MiniMoE.from_pretrained, load_run])
def test_a_swap_that_a_kill_cut_short_is_undone_by_any_reader(tmp_path, read):
    save_training(tmp_path / "last", *trained(1), 7, {})
    (tmp_path / "last").rename(tmp_path / ".last.old")
    assert read(tmp_path / "last")
    assert [path.name for path in tmp_path.iterdir()] == ["last"]


def test_a_write_that_fails_leaves_the_last_good_checkpoint(tmp_path, monkeypatch):
    good, optimizer = trained(1)
    save_training(tmp_path / "last", good, optimizer, 7, {})
    expected = bits(good, optimizer)

    def check():
        _, optimizer = make(seed=9)
        load_moments(tmp_path / "last", optimizer)
        assert bits(MiniMoE.from_pretrained(tmp_path / "last"), optimizer) == expected
        assert load_run(tmp_path / "last") == {"step": 7, "updates": 1}

    with pytest.raises(TypeError):
        save_training(tmp_path / "last", *trained(2), 7, {"not JSON": object()})    # the last file to be written
    check()

    synced = []

    def full_disk(handle):
        synced.append(handle)
        if len(synced) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(InputError, match="last could not be saved: No space left on device; nothing saved before is lost"):
        save_training(tmp_path / "last", *trained(2), 7, {})
    check()
    monkeypatch.undo()
    save_training(tmp_path / "last", *trained(2), 7, {})
    assert load_run(tmp_path / "last") == {"step": 7, "updates": 2}
    assert [path.name for path in tmp_path.iterdir()] == ["last"]
