"""Files from strangers: reading one executes nothing, opens no other file, and asks for no more memory than it has bytes."""

import ast
import json
import pickle
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import minimoe
from minimoe import MiniMoE
from minimoe.config import PRESETS
from minimoe.errors import InputError
from minimoe.release import release
from minimoe.training.checkpoint import load_moments, load_run, save_training
from minimoe.training.optim import AdamW

SOURCES = sorted(Path(minimoe.__file__).parent.rglob("*.py"))
NO_MODULE = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml", "zipimport", "code", "codeop"}
NO_CALL = {"eval", "exec", "compile", "__import__"}
NO_ATTRIBUTE = {"load", "loads", "save", "savez", "fromfile", "memmap", "loadtxt", "genfromtxt"}
NO_NAME = {"os.system", "os.popen"}
READER = """
import json, sys
from pathlib import Path
import numpy as np
from minimoe import MiniMoE
from minimoe.errors import InputError
from minimoe.training.checkpoint import load_moments, load_run
from minimoe.training.optim import AdamW

folder, opened = Path(sys.argv[1]), []

def read():
    optimizer = AdamW(dict(MiniMoE.from_pretrained(folder).named_parameters()), 0.1)
    load_moments(folder, optimizer)
    load_run(folder)

read()    # what is imported on first use is

def watch(event, arguments):
    if watching and event == "open":
        opened.append(str(arguments[0]))
    elif watching and event.split(".")[0] not in ("os", "object", "sys"):
        print("EVENT", event, arguments)
    elif watching and event in ("os.system", "os.exec", "os.posix_spawn", "os.fork", "os.putenv", "os.rename", "os.remove"):
        print("EVENT", event, arguments)

watching = False
sys.addaudithook(watch)
for damage in json.load(sys.stdin):
    for name, text in damage.items():
        (folder / name).write_bytes(bytes.fromhex(text))
    watching = True
    try:
        read()
    except InputError as error:
        print("refused", error)
    watching = False
for path in sorted(set(opened)):
    print("opened", path)
"""


def found(tree):
    """(what, line) of whatever could execute what a file says."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names if alias.name.split(".")[0] in NO_MODULE)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in NO_MODULE:
            yield node.module, node.lineno
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in NO_CALL:
            yield node.func.id, node.lineno
        elif isinstance(node, ast.Attribute) and (name := ast.unparse(node)) != "json.loads":
            if node.attr in NO_ATTRIBUTE or name in NO_NAME:
                yield name, node.lineno
        elif isinstance(node, ast.keyword) and node.arg in ("allow_pickle", "shell"):
            yield node.arg, node.value.lineno


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_no_source_can_execute_what_a_file_says(source):
    assert list(found(ast.parse(source.read_text()))) == []


@pytest.mark.parametrize(
    "line", ["import pickle", "from pickle import load", "np.load(path)", "eval(text)", "exec(text)", "f(x, allow_pickle=True)",
             "import yaml as y", "subprocess.run(x, shell=True)", "torch.load(path)", "os.system(x)", "__import__(name)"],
)
def test_that_would_be_seen(line):
    assert list(found(ast.parse(line)))


class Bomb:
    def __reduce__(self):
        return print, ("EVENT exploded",)


def test_reading_executes_nothing_and_opens_nothing_else(tmp_path):
    model = MiniMoE(PRESETS["micro"], np.random.default_rng(0))
    save_training(tmp_path, model, AdamW(dict(model.named_parameters()), 0.1), 1, {})
    bomb, config = pickle.dumps(Bomb()), json.loads((tmp_path / "config.json").read_text())
    code = {"__class__": "os.system", "auto_map": {"x": "y.py"}, "base": "/etc/passwd"}
    sound = {name: (tmp_path / name).read_bytes().hex() for name in ("config.json", "model.safetensors", "optimizer.safetensors", "run.json")}
    damages = [{**sound, name: bomb.hex()} for name in sound]
    damages += [{**sound, "config.json": json.dumps(config | {key: value}).encode().hex()} for key, value in code.items()]
    damages += [{**sound, "run.json": b'{"step": "__import__(\'os\')", "updates": 1}'.hex()}]
    done = subprocess.run([sys.executable, "-c", READER, tmp_path], input=json.dumps(damages), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    assert "EVENT" not in done.stdout and sum(line.startswith("refused") for line in told) == len(damages)
    opened = {line.removeprefix("opened ") for line in told if line.startswith("opened")}
    assert {str(tmp_path / name) for name in ("config.json", "run.json")} <= opened
    assert all(Path(path).parent == tmp_path for path in opened)


def checkpoint(folder, **sizes):
    """A micro checkpoint whose config says other sizes; its bytes."""
    MiniMoE(PRESETS["micro"], np.random.default_rng(0)).save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | sizes))
    return sum(file.stat().st_size for file in folder.iterdir())


def peak(read):
    """The most memory asked for while reading is refused."""
    tracemalloc.start()
    with pytest.raises(InputError) as error:
        read()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert str(error.value).isprintable()
    return most


@pytest.mark.parametrize(
    "sizes",
    [{"vocabulary": 2**20}, {"experts": 2**14, "expert_width": 2**14}, {"width": 3 * 2**12}, {"expert_width": 2**20}, {"streams": 2**20}, {"blocks": 1024},
     {"width": 3 * 2**18, "expert_width": 2**20, "experts": 2**20, "vocabulary": 2**20, "streams": 2**20}],
)
def test_a_config_asks_for_no_memory_that_the_file_has_not(tmp_path, sizes):
    size = checkpoint(tmp_path / "model", **sizes)
    assert peak(lambda: MiniMoE.from_pretrained(tmp_path / "model")) < 2**17 + 4 * size


def test_a_base_asks_for_no_memory_either(tmp_path):
    checkpoint(tmp_path / "plain")
    release(tmp_path / "plain", tmp_path / "base")
    release(tmp_path / "plain", tmp_path / "trained", tmp_path / "base")
    for name in "base", "trained":
        path = tmp_path / name / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"experts": 2**14, "expert_width": 2**14}))
    assert peak(lambda: MiniMoE.from_pretrained(tmp_path / "trained")) < 2**21


def test_moments_ask_for_no_memory_that_the_model_has_not(tmp_path):
    checkpoint(tmp_path / "model")
    model = MiniMoE.from_pretrained(tmp_path / "model")
    optimizer = AdamW(dict(model.named_parameters()), 0.1)
    save_training(tmp_path / "last", model, optimizer, 1, {})
    large = {"m.huge": np.zeros(2**22, np.float32)}
    path = tmp_path / "last" / "optimizer.safetensors"
    save_file(load_file(path) | large, path)
    assert peak(lambda: load_moments(tmp_path / "last", optimizer)) < 2**20
    assert load_run(tmp_path / "last")["step"] == 1
