"""minimoe: a modern language model in pure NumPy, every backward pass written by hand.

Names are loaded on first use (PEP 562), so that a command can settle BLAS's threads before NumPy is imported.
"""

from importlib import import_module

_HOME = {
    "MiniMoE": "model",
    "ModelConfig": "config",
    "generate": "generate",
    **dict.fromkeys(["encode", "decode", "completion_text", "PAD", "BOS", "EOS", "SEP"], "tokenizer"),
}
__all__ = list(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'minimoe' has no attribute {name!r}")
    return getattr(import_module(f"minimoe.{_HOME[name]}"), name)
