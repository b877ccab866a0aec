import subprocess
import sys

import pytest

import minimoe


def python(code):
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_is_cheap():
    """A command settles BLAS's threads between importing minimoe and importing NumPy."""
    assert python("import minimoe, sys; print('numpy' in sys.modules, minimoe.__name__)") == "False minimoe\n"


def test_public_names_come_from_the_package():
    code = (
        "from minimoe import MiniMoE, ModelConfig, encode, decode, completion_text, BOS, EOS, PAD, SEP\n"
        "print(PAD, BOS, EOS, SEP, decode(encode('hi')), completion_text(encode('a') + [EOS] + encode('b')))\n"
        "print(MiniMoE(ModelConfig(width=4, heads=1, experts=2, expert_width=3), None).config.width)"
    )
    assert python(code) == "0 1 2 3 hi a\n4\n"
    for name in minimoe.__all__:
        assert getattr(minimoe, name) is not None


@pytest.mark.parametrize(
    "before",
    [
        "",
        "import minimoe.generate",
        "import minimoe.generate as module",
        "from minimoe.generate import generate",
        "import minimoe; minimoe.generate",
        "import minimoe.coding.scoring",
    ],
)
def test_generate_is_the_function_whatever_was_imported_before(before):
    code = "from minimoe import generate\nimport minimoe, sys\nprint(generate is minimoe.generate)\n"
    code += "print(generate is sys.modules['minimoe.generate'].generate)"
    assert python(f"{before}\n{code}") == "True\nTrue\n"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'minimoe' has no attribute 'MegaMoE'"):
        minimoe.MegaMoE
    with pytest.raises(ImportError):
        from minimoe import MegaMoE  # noqa: F401
