"""What `pip install` gets: the package, and nothing beside it."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
for module in "build", "twine":
    pytest.importorskip(module, reason=f"{module} is not installed: pip install -e '.[check]'")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel and the source distribution."""
    out = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "build", "--outdir", str(out), str(ROOT)], check=True, capture_output=True)
    return next(out.glob("*.whl")), next(out.glob("*.tar.gz"))


def test_twine_has_nothing_to_say(built):
    checked = subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *map(str, built)], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


def test_the_wheel_has_every_file_of_the_package_and_no_other(built):
    with zipfile.ZipFile(built[0]) as wheel:
        names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    files = {path for path in ROOT.glob("minimoe/**/*") if path.is_file() and "__pycache__" not in path.parts}
    assert names == {path.relative_to(ROOT).as_posix() for path in files}


def test_the_source_has_neither_tests_nor_weights(built):
    with tarfile.open(built[1]) as source:
        names = {name.partition("/")[2] for name in source.getnames()}
    tops = {name.partition("/")[0] for name in names} - {""}
    assert tops == {"minimoe", "minimoe.egg-info", "LICENSE", "MANIFEST.in", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg"}
    assert not any(name.endswith(".safetensors") for name in names)
