"""The same model in PyTorch: eager, no compilation, gradients by autograd.

    model = MiniMoE.from_pretrained("checkpoints/released/pretrain-0085")
    logits, routed = model(ids)                                            # ids (B,T) int64 -> logits (B,T,V)

Parameters have the names and shapes of `model.safetensors`, which loads as it is. The tests compare logits, gradients
and training steps with minimoe's own; the benchmark, seconds.

Give the dtype when you load: `.to(dtype)` of a finished model would make the complex `turns` real.

Three things differ from minimoe: which of two equal router logits comes first is PyTorch's choice, its clipping adds
1e-6 to the norm, and all rows of a decoding state stand at one position.

Letters in shapes: B batch, T time, D width, H heads, K head width, E experts, F expert width, S streams, V vocabulary,
N = B*T rows, L positions read so far, C a chunk of T.
"""

import json
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from minimoe.config import ModelConfig

BALANCE = 0.01
MICROBATCHES = 1    # in a step: more save memory, not time
LayerState = tuple[Tensor, Tensor]


class Routed(NamedTuple):
    probs: Tensor               # (N,E) softmax over all the router's logits
    counts: Tensor              # (E,) rows sent to each expert


class State(NamedTuple):
    """What decoding keeps of the past: (kv, z) of a linear layer, (keys, values) of a sparse one, written in place."""

    position: int
    layers: list[LayerState | None]


class Attention(nn.Module):
    """What both kinds share: x (B,T,D) -> q, k, v (B,H,T,K), and back."""

    def __init__(self, c: ModelConfig):
        super().__init__()
        self.config = c
        self.qkv = nn.Linear(c.width, 3 * c.width, bias=False)
        self.out = nn.Linear(c.width, c.width, bias=False)

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.qkv(x).unflatten(-1, (3, self.config.heads, -1)).permute(2, 0, 3, 1, 4).unbind()

    def join(self, attended: Tensor) -> Tensor:
        return self.out(attended.transpose(1, 2).flatten(2))


class LinearAttention(Attention):
    def forward(self, x: Tensor, turns: Tensor, position: int, state: LayerState | None) -> tuple[Tensor, LayerState]:
        q, k, v = self.split(x)
        kv, z = state or self.start(x)                                     # (B,H,K,K), (B,H,1,K) sums over the past
        q, k = elu_plus_one(q), elu_plus_one(k)
        z = z + k.cumsum(dim=2)                                            # (B,H,T,K)
        denominator = (q * z).sum(-1, keepdim=True) + 1e-6

        q, k, C = rotate(q, turns), rotate(k, turns), self.config.chunk_size
        numerators = []
        for q, k, v in zip(q.split(C, dim=2), k.split(C, dim=2), v.split(C, dim=2)):
            numerators.append((q @ k.mT).tril() @ v + q @ kv)              # (B,H,C,K)
            kv = kv + k.mT @ v
        return self.join(torch.cat(numerators, dim=2) / denominator), (kv, z[:, :, -1:])

    def start(self, x: Tensor) -> LayerState:
        B, H, K = len(x), self.config.heads, self.config.head_width
        return x.new_zeros(B, H, K, K), x.new_zeros(B, H, 1, K)


class SparseAttention(Attention):
    def forward(
        self, x: Tensor, turns: Tensor, position: int, state: LayerState | None
    ) -> tuple[Tensor, LayerState | None]:
        T, c = x.shape[1], self.config
        q, k, v = self.split(x)
        q, k = rotate(q, turns) * c.head_width**-0.5, rotate(k, turns)
        if state:
            for past, new in zip(state, (k, v)):
                past[:, :, position : position + T] = new
            k, v = (past[:, :, : position + T] for past in state)          # (B,H,L,K)
        scores = q @ k.mT                                                  # (B,H,T,L)
        if T > 1:                                                          # a single query sees all keys
            scores = scores + scores.new_full(scores.shape[2:], -torch.inf).triu(position + 1)
        if scores.shape[-1] > c.sparse_top_k:
            lowest = scores.detach().topk(c.sparse_top_k, sorted=False).values.amin(-1, keepdim=True)
            scores = scores.masked_fill(scores < lowest, -torch.inf)       # ties with the lowest stay
        return self.join(scores.softmax(-1) @ v), state

    def start(self, x: Tensor) -> LayerState:
        shape = len(x), self.config.heads, self.config.context, self.config.head_width
        return x.new_empty(shape), x.new_empty(shape)


def elu_plus_one(x: Tensor) -> Tensor:
    """x + 1 where x > 0, else e^x; `F.elu(x) + 1` is 0 where x is far below 0."""
    return x.clamp(max=0).exp() + F.relu(x)


def rotate(x: Tensor, turns: Tensor) -> Tensor:
    """RoPE: multiply neighbouring channels of x (B,H,T,K), as complex numbers, by turns (T,K/2)."""
    return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turns).flatten(-2)


def swiglu(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    gate, value = F.linear(x, up).chunk(2, dim=-1)
    return F.linear(F.silu(gate) * value, down)


class SharedExpert(nn.Module):
    def __init__(self, c: ModelConfig):
        super().__init__()
        self.up = nn.Linear(c.width, 2 * c.expert_width, bias=False)
        self.down = nn.Linear(c.expert_width, c.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return swiglu(x, self.up.weight, self.down.weight)


class Experts(nn.Module):
    def __init__(self, c: ModelConfig):
        super().__init__()
        self.up = nn.Parameter(torch.empty(c.experts, 2 * c.expert_width, c.width))
        self.down = nn.Parameter(torch.empty(c.experts, c.width, c.expert_width))

    def forward(self, x: Tensor, counts: Tensor) -> Tensor:
        """Rows of x in order of their experts, counts[e] of them for expert e."""
        calls = zip(x.split(counts.tolist()), self.up.unbind(), self.down.unbind())
        return torch.cat([swiglu(rows, up, down) for rows, up, down in calls if len(rows)])


class MoE(nn.Module):
    def __init__(self, c: ModelConfig):
        super().__init__()
        self.k = c.experts_per_token
        self.router = nn.Linear(c.width, c.experts, bias=False)
        self.experts = Experts(c)
        self.shared = SharedExpert(c)

    def forward(self, x: Tensor) -> tuple[Tensor, Routed]:
        rows = x.flatten(0, 1)                                             # (N,D)
        logits = self.router(rows)                                         # (N,E)
        best, chosen = logits.topk(self.k)                                 # (N,k)
        counts = chosen.flatten().bincount(minlength=logits.shape[1])      # (E,)
        order = chosen.flatten().argsort(stable=True)                      # (N*k,) places of `chosen`, sorted by expert
        outputs = self.experts(rows.index_select(0, order // self.k), counts)
        outputs = outputs.index_select(0, order.argsort()).unflatten(0, (-1, self.k))    # (N,k,D) as chosen again
        y = (outputs * best.softmax(-1)[..., None]).sum(1) + self.shared(rows)
        return y.view_as(x), Routed(logits.softmax(-1), counts)


class Block(nn.Module):
    def __init__(self, c: ModelConfig, attention: Attention):
        super().__init__()
        self.read = nn.Parameter(torch.linspace(0.1, -0.1, c.streams))
        self.write = nn.Parameter(torch.linspace(-0.1, 0.1, c.streams))
        self.attention_norm = nn.RMSNorm(c.width, eps=1e-6)
        self.attention = attention
        self.ffn_norm = nn.RMSNorm(c.width, eps=1e-6)
        self.moe = MoE(c)

    def forward(
        self, streams: Tensor, turns: Tensor, position: int = 0, state: LayerState | None = None
    ) -> tuple[Tensor, Routed, LayerState | None]:
        x = torch.tensordot(self.read.softmax(0), streams, 1)              # (B,T,D)
        h, state = self.attention(self.attention_norm(x), turns, position, state)
        f, routed = self.moe(self.ffn_norm(x + h))
        share = len(streams) * self.write.softmax(0)
        written = torch.addr(streams.flatten(1), share, (h + f).flatten())    # streams + outer(share, update)
        return written.view_as(streams), routed, state


class MiniMoE(nn.Module):
    def __init__(self, config: ModelConfig, dtype: torch.dtype = torch.float32):
        super().__init__()
        c = self.config = config
        self.embedding = nn.Embedding(c.vocabulary, c.width)               # the head too: tied
        kinds = [LinearAttention if (i + 1) % c.sparse_every else SparseAttention for i in range(c.blocks)]
        self.blocks = nn.ModuleList(Block(c, kind(c)) for kind in kinds)
        self.final_norm = nn.RMSNorm(c.width, eps=1e-6)
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)
        self.to(dtype)
        frequencies = 10000.0 ** (-torch.arange(0, c.head_width, 2, dtype=torch.float64) / c.head_width)
        angles = torch.outer(torch.arange(c.context), frequencies)         # (context, K/2)
        turns = torch.polar(torch.ones_like(angles), angles).to(dtype.to_complex())
        self.register_buffer("turns", turns, persistent=False)

    @classmethod
    def from_pretrained(cls, folder: str | Path, dtype: torch.dtype = torch.float32) -> "MiniMoE":
        """Read `config.json` and `model.safetensors` from a folder."""
        model = cls(ModelConfig.from_dict(json.loads(Path(folder, "config.json").read_text())), dtype)
        model.load_state_dict(load_file(Path(folder, "model.safetensors")))
        return model

    def forward(self, ids: Tensor) -> tuple[Tensor, list[Routed]]:
        """ids (B,T) -> logits (B,T,V) of the id that follows each, and each block's routing."""
        turns, routed = self.turns[: ids.shape[1]], []
        streams = self.split(ids)
        for block in self.blocks:
            streams, block_routed, _ = block(streams, turns)
            routed.append(block_routed)
        return self.head(streams), routed

    @torch.inference_mode()
    def step(self, ids: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Read the next ids of each row, (B,t) -> logits (B,t,V), and the state after them; the old one is used up."""
        streams = self.split(ids)
        position, layers = state or State(0, [block.attention.start(streams[0]) for block in self.blocks])
        after = position + ids.shape[1]
        turns, layers = self.turns[position:after], list(layers)
        for i, block in enumerate(self.blocks):
            streams, _, layers[i] = block(streams, turns, position, layers[i])
        return self.head(streams), State(after, layers)

    def split(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        return x.expand(self.config.streams, *x.shape)                     # (S,B,T,D)

    def head(self, streams: Tensor) -> Tensor:
        return F.linear(self.final_norm(streams.mean(0)), self.embedding.weight)


def decode(model: MiniMoE, prompt_ids: Tensor, new_tokens: int) -> Tensor:
    """Continue prompts (B,T) by the likeliest ids, (B,new_tokens); an EOS ends nothing."""
    logits, state = model.step(prompt_ids)
    ids = [logits[:, -1].argmax(-1, keepdim=True)]
    while len(ids) < new_tokens:
        logits, state = model.step(ids[-1], state)
        ids.append(logits[:, -1].argmax(-1, keepdim=True))
    return torch.cat(ids, dim=1)


def policy_gradient(logits: Tensor, targets: Tensor, weights: Tensor, temperature: float = 1.0) -> Tensor:
    """-sum(weights * log softmax(logits / temperature)[target]); logits (B,T,V), targets and weights (B,T)."""
    losses = F.cross_entropy((logits / temperature).flatten(0, 1), targets.flatten(), reduction="none")
    return losses @ weights.flatten()


def pretraining_loss(logits: Tensor, routed: list[Routed], targets: Tensor) -> Tensor:
    """Mean cross entropy + BALANCE * the load-balance loss, summed over blocks."""
    balance = sum(len(counts) * (counts / counts.sum()).to(probs.dtype) @ probs.mean(0) for probs, counts in routed)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten()) + BALANCE * balance


def adamw(model: nn.Module, learning_rate: float = 3e-4) -> torch.optim.AdamW:
    """Weight decay 0.1 on matrices, none on vectors."""
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95), fused=True)


def train_step(
    model: MiniMoE, optimizer: torch.optim.Optimizer, ids: Tensor, microbatches: int = MICROBATCHES
) -> Tensor:
    """One step of pretraining on ids (B,T+1); return the loss."""
    optimizer.zero_grad()
    total = 0
    for part in ids.tensor_split(microbatches):
        loss = pretraining_loss(*model(part[:, :-1]), part[:, 1:]) * (len(part) / len(ids))
        loss.backward()
        total += loss.detach()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return total
