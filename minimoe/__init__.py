"""minimoe: a modern language model in pure NumPy, every backward pass written by hand.

Names are loaded on first use (PEP 562), so that a command can settle BLAS's threads before NumPy is imported.
"""

import sys
from importlib import import_module
from types import ModuleType

_HOME = {
    "MiniMoE": "model",
    "ModelConfig": "config",
    "generate": "generate",
    **dict.fromkeys(["encode", "decode", "completion_text", "PAD", "BOS", "EOS", "SEP"], "tokenizer"),
}
__all__ = list(_HOME)


class _Package(ModuleType):
    """Importing a submodule binds its name in the package; where a public name is the same, the public name stays."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> object:
        if name not in _HOME:
            raise AttributeError(f"module 'minimoe' has no attribute {name!r}")
        return getattr(import_module(f"minimoe.{_HOME[name]}"), name)


sys.modules[__name__].__class__ = _Package
