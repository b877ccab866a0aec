"""The model: ids -> embedding -> streams through the blocks -> norm -> logits."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from minimoe import files
from minimoe.config import ModelConfig
from minimoe.errors import InputError
from minimoe.layers.block import Block, BlockSaved
from minimoe.layers.embedding import Embedding
from minimoe.layers.layer import Grads, Layer, Rng, State
from minimoe.layers.linear import Linear
from minimoe.layers.linear_attention import LinearAttention
from minimoe.layers.moe import MoE
from minimoe.layers.rmsnorm import RMSNorm
from minimoe.layers.sparse_attention import SparseAttention

CONFIG, WEIGHTS = "config.json", "model.safetensors"
BASE, BASE_SHA256 = "base", "base_sha256"    # in config.json of a checkpoint that holds only what differs from another


class Saved(NamedTuple):
    embedding: Any
    blocks: list[BlockSaved]
    final_norm: Any
    head: Any


class MiniMoE(Layer):
    """A mixture-of-experts language model over bytes. `rng` draws the weights; None leaves them unset, for a loader."""

    def __init__(self, config: ModelConfig, rng: Rng, dtype: Any = np.float32):
        c = self.config = config
        self.embedding = Embedding(c.vocabulary, c.width, rng, dtype)
        self.blocks = []
        for i in range(c.blocks):
            if (i + 1) % c.sparse_every:
                attention: Any = LinearAttention(c.width, c.heads, c.head_width, c.chunk_size, rng, dtype)
            else:
                attention = SparseAttention(c.width, c.heads, c.head_width, c.sparse_top_k, rng, dtype)
            moe = MoE(c.width, c.experts, c.expert_width, c.experts_per_token, rng, dtype)
            self.blocks.append(Block(c.streams, c.width, attention, moe, dtype))
        self.final_norm = RMSNorm(c.width, dtype)
        self.head = Linear(c.width, c.vocabulary, rng, dtype, weight=self.embedding.weight)    # tied: one matrix, two uses

    def forward(self, ids: np.ndarray) -> tuple[np.ndarray, Saved]:
        """ids (B,T) -> logits (B,T,V) of the id that follows each."""
        x, saved_embedding = self.embedding.forward(ids)                  # (B,T,D)
        streams = np.stack([x] * self.config.streams)                     # (S,B,T,D)
        saved_blocks = []
        for block in self.blocks:
            streams, saved = block.forward(streams)
            saved_blocks.append(saved)
        h, saved_norm = self.final_norm.forward(streams.mean(axis=0))     # (B,T,D)
        logits, saved_head = self.head.forward(h)                         # (B,T,V)
        return logits, Saved(saved_embedding, saved_blocks, saved_norm, saved_head)

    def backward(
        self, dlogits: np.ndarray, saved: Saved, grads: Grads, dprobs: Sequence[np.ndarray] | None = None
    ) -> None:
        """Add to `grads` the gradient that dlogits (B,T,V) and, for each block, dprobs (N,E) of its router, bring.

        Stops at the lowest block that has a parameter in `grads`.
        """
        dh = self.head.backward(dlogits, saved.head, grads)               # logits = h E^T
        dmean = self.final_norm.backward(dh, saved.final_norm, grads)     # h = norm(mean)
        S = self.config.streams
        dstreams = np.stack([dmean / S] * S)                              # mean = sum(streams) / S
        for i in reversed(range(self.lowest_trainable(grads), len(self.blocks))):
            dstreams = self.blocks[i].backward(dstreams, saved.blocks[i], grads, dprobs[i] if dprobs else None)
        if self.embedding.weight in grads:
            self.embedding.backward(dstreams.sum(axis=0), saved.embedding, grads)     # each stream began as x

    def lowest_trainable(self, grads: Grads) -> int:
        """Return the index of the lowest block that backward must reach."""
        if self.embedding.weight in grads:
            return 0
        for i, block in enumerate(self.blocks):
            if any(parameter in grads for _, parameter in block.named_parameters()):
                return i
        return len(self.blocks)

    def step(self, ids: np.ndarray, state: list[State] | None = None) -> tuple[np.ndarray, list[State]]:
        """Read the next t >= 1 ids of each row, (B,t) -> logits (B,t,V), and the state after them."""
        x, _ = self.embedding.forward(ids)
        streams = np.stack([x] * self.config.streams)
        after = []
        for i, block in enumerate(self.blocks):
            streams, past = block.step(streams, state[i] if state else None)
            after.append(past)
        h, _ = self.final_norm.forward(streams.mean(axis=0))
        logits, _ = self.head.forward(h)
        return logits, after

    def parameter_counts(self) -> dict[str, int]:
        """Return how many numbers the model has, and how many of them one token meets."""
        c = self.config
        total = sum(parameter.data.size for _, parameter in self.named_parameters())
        expert = 3 * c.width * c.expert_width
        return {"total": total, "active": total - c.blocks * (c.experts - c.experts_per_token) * expert}

    def save_pretrained(self, folder: str | Path) -> None:
        """Write `config.json` and `model.safetensors` (matrices as (out, in)), all or nothing."""
        files.write_folder(Path(folder), self.checkpoint_files())

    def checkpoint_files(self) -> dict[str, dict[str, Any]]:
        """Return the files of a checkpoint, by name. Raises `InputError` for weights that are not numbers: none are saved."""
        tensors = {name: parameter.data for name, parameter in self.named_parameters()}
        for name, array in tensors.items():
            if not np.isfinite(array).all():
                raise InputError(f"{name} holds NaN or infinity, so it was not saved; go on by --resume, a lower --learning-rate")
        return {CONFIG: self.config.to_dict(), WEIGHTS: tensors}

    @classmethod
    def from_pretrained(cls, path: str | Path, subfolder: str | None = None, dtype: Any = np.float32) -> "MiniMoE":
        """Read what `save_pretrained` or `minimoe.release` wrote.

        A config.json that names a `base` is of a folder with some of the tensors; the base has the rest. Raises `InputError`,
        naming file and tensor, for anything else.
        """
        folder = Path(path, subfolder or "")
        files.recover(folder)
        content = files.read_json(folder / CONFIG)
        config, base = read_config(folder, content)
        if base is not None:
            files.recover(base)
            if read_config(base, files.read_json(base / CONFIG)) != (config, None):
                raise InputError(f"{base / CONFIG} is not the base of {folder}: other sizes, or a base of its own")
        whole = (base or folder) / WEIGHTS
        files.require_size(whole, config.parameters)                      # before any memory is asked for
        model = cls(config, rng=None, dtype=dtype)
        shapes = {name: parameter.data.shape for name, parameter in model.named_parameters()}
        tensors = files.read_tensors(whole, shapes, dtype)
        if BASE_SHA256 in content and content[BASE_SHA256] != files.sha256(whole):
            raise InputError(f"{whole} is not the file that {folder / CONFIG} was released with; copy both folders together")
        if base is not None:
            tensors |= files.read_tensors(folder / WEIGHTS, shapes, dtype, some=True)
        for name, parameter in model.named_parameters():
            parameter.data = tensors[name]
        return model


def read_config(folder: Path, content: dict[str, Any]) -> tuple[ModelConfig, Path | None]:
    """Return the sizes in a config.json of `folder`, and the checkpoint that has the tensors which are not in `folder`.

    Raises `InputError` for other sizes than a model's, and for a base that does not lie beside `folder`: a checkpoint from
    a stranger names no other files.
    """
    of_base = (BASE, BASE_SHA256) if BASE in content else ()
    sizes = {key: value for key, value in content.items() if key not in of_base}
    try:
        config = ModelConfig.from_dict(sizes)
    except InputError as error:
        raise InputError(f"{folder / CONFIG}: {error}") from None
    if BASE not in content:
        return config, None
    beside, base = Path(os.path.realpath(folder)).parent, content[BASE]
    named = re.fullmatch(r"\.\./(?!\.\.?$)[^/\\]+", base) if isinstance(base, str) and base.isprintable() else None
    place = Path(os.path.realpath(beside / base[3:])) if named else None
    if place is None or place.parent != beside:                           # a link may lead elsewhere
        raise InputError(f"{folder / CONFIG}: base is {base!r}; it must be a folder beside {folder.name}, as ../NAME")
    return config, place
