"""Released weights: half the size, and what did not change stands in the base alone."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import minimoe.release
from minimoe import MiniMoE
from minimoe.config import PRESETS
from minimoe.errors import InputError
from minimoe.release import release
from tests.commands import refused

TRAINED = "blocks.3.moe.router.weight"


@pytest.fixture
def folders(tmp_path):
    """A release, and one that differs from it in one tensor."""
    model = MiniMoE(PRESETS["micro"], np.random.default_rng(0))
    model.save_pretrained(tmp_path / "before")
    dict(model.named_parameters())[TRAINED].data += 0.25
    model.save_pretrained(tmp_path / "after")
    release(tmp_path / "before", tmp_path / "released" / "base")
    release(tmp_path / "after", tmp_path / "released" / "trained", tmp_path / "released" / "base")
    return tmp_path


def weights(folder):
    return {name: parameter.data for name, parameter in MiniMoE.from_pretrained(folder).named_parameters()}


@pytest.mark.parametrize("plain, released", [("before", "base"), ("after", "trained")])
def test_reads_as_float32_what_was_rounded_to_float16(folders, plain, released):
    right, found = weights(folders / plain), weights(folders / "released" / released)
    for name, array in right.items():
        assert found[name].dtype == np.float32
        np.testing.assert_array_equal(found[name], array.astype(np.float16), err_msg=name)


def test_only_what_changed_is_written(folders):
    assert set(load_file(folders / "released" / "trained" / "model.safetensors")) == {TRAINED}
    assert json.loads((folders / "released" / "trained" / "config.json").read_text())["base"] == "../base"


def test_both_may_be_moved_together(folders):
    (folders / "released").rename(folders / "elsewhere")
    np.testing.assert_array_equal(weights(folders / "elsewhere" / "trained")[TRAINED], weights(folders / "after")[TRAINED].astype(np.float16))


@pytest.mark.parametrize("base, says", [
    ("../missing", "does not exist"), ("../trained", "a base of its own"), (".", "folder beside"), ("..", "folder beside"),
    ("../../before", "folder beside"), ("/etc", "folder beside"), ("../base/..", "folder beside"), ("", "folder beside"),
    (None, "folder beside"), (7, "folder beside"), (["../base"], "folder beside"), ("a\0b", "folder beside"), ("../../", "folder beside"), ("../\ud800", "folder beside"), ("../a\nb", "folder beside"), ("../.", "folder beside"),
])
def test_no_other_base(folders, base, says):
    path = folders / "released" / "trained" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"base": base}))
    with pytest.raises(InputError, match=says):
        MiniMoE.from_pretrained(path.parent)


def test_a_link_leads_no_further(folders):
    (folders / "released" / "link").symlink_to(folders / "before")
    path = folders / "released" / "trained" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"base": "../link"}))
    with pytest.raises(InputError, match="folder beside"):
        MiniMoE.from_pretrained(path.parent)


def test_another_base_of_the_same_sizes(folders):
    MiniMoE(PRESETS["micro"], np.random.default_rng(1)).save_pretrained(folders / "other")
    shutil.rmtree(folders / "released" / "base")
    release(folders / "other", folders / "released" / "base")
    with pytest.raises(InputError, match="is not the file that .* was released with"):
        MiniMoE.from_pretrained(folders / "released" / "trained")


def test_nothing_is_released_over_a_folder_in_the_middle_of_its_swap(folders):
    (folders / "before").rename(folders / ".before.old")
    with pytest.raises(InputError, match="is there already"):
        release(folders / "after", folders / "before")
    assert (folders / "before" / "config.json").exists()


def test_base_of_other_sizes(folders):
    MiniMoE(PRESETS["nano"], np.random.default_rng(0)).save_pretrained(folders / "released" / "base")
    with pytest.raises(InputError, match="other sizes"):
        MiniMoE.from_pretrained(folders / "released" / "trained")


def test_without_a_base_every_tensor_must_be_there(folders):
    path = folders / "released" / "trained" / "config.json"
    config = json.loads(path.read_text())
    del config["base"], config["base_sha256"]
    path.write_text(json.dumps(config))
    with pytest.raises(InputError, match="too few for|lacks the tensor"):
        MiniMoE.from_pretrained(path.parent)


@pytest.mark.parametrize("tensors, says", [
    ({"blocks.9.read": np.ones(2, np.float16)}, "too many"), ({TRAINED: np.ones(3, np.float16)}, "shape"),
    ({TRAINED: np.full((5, 12), np.nan, np.float16)}, "NaN"),
])
def test_what_differs_is_checked_too(folders, tensors, says):
    save_file(tensors, folders / "released" / "trained" / "model.safetensors")
    with pytest.raises(InputError, match=says):
        MiniMoE.from_pretrained(folders / "released" / "trained")


def test_command_says_what_it_cannot_do(folders, monkeypatch, capsys):
    base = folders / "released" / "base"
    model = MiniMoE.from_pretrained(folders / "after")
    model.embedding.weight.data[0, 0] = 1e5
    model.save_pretrained(folders / "large")
    for arguments, says in [
        ((folders / "none", folders / "x"), "does not exist"),
        ((folders / "after", folders / "x", "--base", base), "does not lie beside"),
        ((folders / "after", base.parent / "x", "--base", base.parent / "trained"), "a base of its own"),
        ((folders / "after", folders / "x", "--base", folders / "before"), "is not in float16"),
        ((folders / "after", base, "--base", base), "is there already"),
        ((folders / "after", folders / "after"), "is there already"),
        ((folders / "large", folders / "x"), "'embedding.weight' has a number too large for float16"),
    ]:
        assert says in refused(minimoe.release, monkeypatch, capsys, *arguments)
    assert not (folders / "x").exists() and not (base.parent / "x").exists()
