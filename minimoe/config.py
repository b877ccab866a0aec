"""The sizes of a model, and three presets."""

from dataclasses import asdict, dataclass, fields
from typing import Any

from minimoe.errors import InputError
from minimoe.tokenizer import VOCABULARY

MAX_BLOCKS = 1024


@dataclass(frozen=True)
class ModelConfig:
    """The sizes of a model; the defaults are the full one. Raises `InputError` for sizes that make no model."""

    vocabulary: int = VOCABULARY
    context: int = 192              # positions it may read, prompt and completion together
    width: int = 192                # D
    blocks: int = 12
    sparse_every: int = 4           # every fourth block has sparse attention, the others linear
    heads: int = 6                  # H
    chunk_size: int = 32            # positions that linear attention reads at once; changes speed, not results
    sparse_top_k: int = 32          # keys that a query of sparse attention keeps
    experts: int = 8                # E, beside the shared one
    experts_per_token: int = 2
    expert_width: int = 384         # F
    streams: int = 4                # S

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) is not int or not 1 <= value <= 2**20:
                raise InputError(f"config: {field.name} is {value!r}; it must be a whole number from 1 to {2**20}")
        if self.vocabulary < VOCABULARY:
            raise InputError(f"config: vocabulary is {self.vocabulary}; the tokenizer needs {VOCABULARY} or more")
        if self.blocks > MAX_BLOCKS:
            raise InputError(f"config: blocks is {self.blocks}; {MAX_BLOCKS} are the most")
        if self.width % self.heads:
            raise InputError(f"config: heads ({self.heads}) must divide width ({self.width})")
        if self.head_width % 2:
            raise InputError(f"config: width / heads is {self.head_width}; rotary positions need an even head width")
        if self.experts_per_token > self.experts:
            raise InputError(f"config: experts_per_token ({self.experts_per_token}) exceeds experts ({self.experts})")

    @property
    def head_width(self) -> int:
        """K"""
        return self.width // self.heads

    @property
    def parameters(self) -> int:
        """The numbers that a model of these sizes has."""
        D, expert = self.width, 3 * self.expert_width * self.width        # up is twice as large as down
        moe = self.experts * D + (self.experts + 1) * expert              # the router; the experts and the shared one
        block = 2 * self.streams + 2 * D + 4 * D**2 + moe                 # read, write; two norms; qkv, out
        return self.vocabulary * D + self.blocks * block + D              # the embedding; the final norm

    def to_dict(self) -> dict[str, int]:
        """Return the sizes as a plain dict, as `config.json` holds them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, sizes: dict[str, Any]) -> "ModelConfig":
        """Return the config that `to_dict` described. Raises `InputError` for a missing or an unknown key."""
        known = {field.name for field in fields(cls)}
        for key in sorted(known ^ set(sizes)):
            raise InputError(f"config: {'unknown' if key in sizes else 'missing'} key {key!r}")
        return cls(**sizes)


PRESETS = {
    "full": ModelConfig(),
    # a lesson's size: trains in seconds
    "nano": ModelConfig(width=64, blocks=4, heads=4, experts=4, expert_width=96, streams=2),
    # for gradient checks in float64: the sizes that meet in one array differ, so that a swapped axis cannot hide
    "micro": ModelConfig(
        context=96, width=12, blocks=4, sparse_every=4, heads=3, chunk_size=6, sparse_top_k=5,
        experts=5, expert_width=7, streams=2,
    ),
}
