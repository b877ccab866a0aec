"""One block: a hyper-connection around attention and a mixture of experts.

    x = read(streams)
    h = attention(norm(x))
    streams = write(streams, h + moe(norm(x + h)))
"""

from typing import Any, NamedTuple

import numpy as np

from minimoe.layers.hyper_connection import Read, Write
from minimoe.layers.layer import Grads, Layer, Parameter, State
from minimoe.layers.moe import MoE, Routed
from minimoe.layers.rmsnorm import RMSNorm


class BlockSaved(NamedTuple):
    read: Any
    attention_norm: Any
    attention: Any
    ffn_norm: Any
    moe: Routed
    write: Any


class Block(Layer):
    """streams (S,B,T,D) -> streams (S,B,T,D)."""

    def __init__(self, streams: int, width: int, attention: Any, moe: MoE, dtype: Any):
        # unequal from the start: equal weights would keep the streams equal for ever
        self.read = Parameter(np.linspace(0.1, -0.1, streams).astype(dtype))
        self.write = Parameter(np.linspace(-0.1, 0.1, streams).astype(dtype))
        self.attention_norm = RMSNorm(width, dtype)
        self.attention = attention
        self.ffn_norm = RMSNorm(width, dtype)
        self.moe = moe
        self.read_streams, self.write_streams = Read(self.read), Write(self.write)

    def forward(self, streams: np.ndarray) -> tuple[np.ndarray, BlockSaved]:
        x, saved_read = self.read_streams.forward(streams)                # (B,T,D)
        n, saved_attention_norm = self.attention_norm.forward(x)
        h, saved_attention = self.attention.forward(n)
        m, saved_ffn_norm = self.ffn_norm.forward(x + h)
        f, saved_moe = self.moe.forward(m)
        streams, saved_write = self.write_streams.forward(streams, h + f)
        return streams, BlockSaved(saved_read, saved_attention_norm, saved_attention, saved_ffn_norm, saved_moe, saved_write)

    def backward(
        self, dstreams: np.ndarray, saved: BlockSaved, grads: Grads, dprobs: np.ndarray | None = None
    ) -> np.ndarray:
        dstreams, dupdate = self.write_streams.backward(dstreams, saved.write, grads)       # update = h + f
        dm = self.moe.backward(dupdate, saved.moe, grads, dprobs)         # f = moe(m)
        dx = self.ffn_norm.backward(dm, saved.ffn_norm, grads)            # m = norm(x + h)
        dh = dupdate + dx                                                 # h stands in the update and in the norm
        dn = self.attention.backward(dh, saved.attention, grads)          # h = attention(n)
        dx += self.attention_norm.backward(dn, saved.attention_norm, grads)     # n = norm(x)
        return dstreams + self.read_streams.backward(dx, saved.read, grads)     # x = read(streams)

    def step(self, streams: np.ndarray, state: State | None) -> tuple[np.ndarray, State]:
        x, _ = self.read_streams.forward(streams)
        n, _ = self.attention_norm.forward(x)
        h, state = self.attention.step(n, state)
        m, _ = self.ffn_norm.forward(x + h)
        f, _ = self.moe.forward(m)
        streams, _ = self.write_streams.forward(streams, h + f)
        return streams, state
