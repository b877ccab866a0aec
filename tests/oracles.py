"""The slow obvious version of each layer: loops over rows, positions, heads and experts, one vector at a time.

Written from the formulas, to be compared with the layers. Weights come as plain arrays, matrices as (out, in).
"""

import math

import numpy as np


def each(f, x):
    """Apply f to every vector on the last axis of x."""
    return f(x) if x.ndim == 1 else np.stack([each(f, part) for part in x])


def linear(x, weight):
    return each(lambda v: np.array([row @ v for row in weight]), x)


def rmsnorm(x, gain):
    return each(lambda v: v / math.sqrt(v @ v / len(v) + 1e-6) * gain, x)


def softmax(scores):
    e = [math.exp(score - max(scores)) for score in scores]
    return [value / sum(e) for value in e]


def rope(v, position):
    """Turn the pairs (0,1), (2,3), ... of one vector."""
    K, turned = len(v), []
    for i in range(K // 2):
        angle = position * 10000 ** (-2 * i / K)
        a, b = v[2 * i], v[2 * i + 1]
        turned += [a * math.cos(angle) - b * math.sin(angle), a * math.sin(angle) + b * math.cos(angle)]
    return np.array(turned)


def phi(v):
    """elu(v) + 1"""
    return np.array([math.exp(a) if a < 0 else a + 1 for a in v])


def attention(x, qkv, out, heads, attend):
    """x (B,T,D); attend(q, k, v, t) gives position t's output from one head's q, k, v (T,K)."""
    B, T, _ = x.shape
    y = []
    for b in range(B):
        q, k, v = linear(x[b], qkv).reshape(T, 3, heads, -1).swapaxes(0, 1)                      # (T,H,K) each
        for t in range(T):
            y.append(np.concatenate([attend(q[:, h], k[:, h], v[:, h], t) for h in range(heads)]))
    return linear(np.array(y), out).reshape(B, T, -1)


def linear_attention(x, qkv, out, heads):
    def attend(q, k, v, t):
        numerator, denominator = 0, 1e-6
        for s in range(t + 1):
            numerator = numerator + (rope(phi(q[t]), t) @ rope(phi(k[s]), s)) * v[s]
            denominator += phi(q[t]) @ phi(k[s])
        return numerator / denominator

    return attention(x, qkv, out, heads, attend)


def sparse_attention(x, qkv, out, heads, top_k):
    def attend(q, k, v, t):
        scores = [rope(q[t], t) @ rope(k[s], s) / math.sqrt(len(q[t])) for s in range(t + 1)]
        threshold = sorted(scores, reverse=True)[min(top_k, t + 1) - 1]
        kept = [s for s in range(t + 1) if scores[s] >= threshold]
        return sum(p * v[s] for p, s in zip(softmax([scores[s] for s in kept]), kept))

    return attention(x, qkv, out, heads, attend)


def dense_attention(x, qkv, out, heads):
    def attend(q, k, v, t):
        scores = [rope(q[t], t) @ rope(k[s], s) / math.sqrt(len(q[t])) for s in range(t + 1)]
        return sum(p * v[s] for s, p in enumerate(softmax(scores)))

    return attention(x, qkv, out, heads, attend)


def swiglu(x):
    def one(v):
        gate, value = v[: len(v) // 2], v[len(v) // 2 :]
        return np.array([g / (1 + math.exp(-g)) * a for g, a in zip(gate, value)])

    return each(one, x)


def expert(x, up, down):
    return linear(swiglu(linear(x, up)), down)


def experts(x, weights, chosen, ups, downs):
    return np.array([sum(w * expert(v, ups[e], downs[e]) for w, e in zip(*row)) for v, *row in zip(x, weights, chosen)])


def best(logits, k):
    """The indices of the k largest, the lower index first where they tie."""
    return sorted(range(len(logits)), key=lambda e: (-logits[e], e))[:k]


def moe(x, router, ups, downs, shared_up, shared_down, k):
    def one(v):
        logits = linear(v, router)
        chosen = best(logits, k)
        y = expert(v, shared_up, shared_down)
        for weight, e in zip(softmax([logits[e] for e in chosen]), chosen):
            y = y + weight * expert(v, ups[e], downs[e])
        return y

    return each(one, x)


def read(streams, weight):
    return sum(share * stream for share, stream in zip(softmax(weight), streams))


def write(streams, update, weight):
    return np.stack([stream + len(weight) * share * update for share, stream in zip(softmax(weight), streams)])


def block(streams, p, heads, top_k, k):
    """`p` maps the names of a block's tensors to arrays; top_k is None for linear attention."""
    qkv, out = p["attention.qkv.weight"], p["attention.out.weight"]
    x = read(streams, p["read"])
    n = rmsnorm(x, p["attention_norm.weight"])
    h = linear_attention(n, qkv, out, heads) if top_k is None else sparse_attention(n, qkv, out, heads, top_k)
    names = "router.weight", "experts.up", "experts.down", "shared.up.weight", "shared.down.weight"
    u = h + moe(rmsnorm(x + h, p["ffn_norm.weight"]), *(p[f"moe.{name}"] for name in names), k)
    return write(streams, u, p["write"])


def model(ids, p, config):
    """ids (B,T) -> logits (B,T,V); `p` maps the names of a checkpoint's tensors to arrays."""
    embedding = p["embedding.weight"]
    streams = np.stack([[[embedding[token] for token in row] for row in ids]] * config.streams)
    for i in range(config.blocks):
        prefix = f"blocks.{i}."
        tensors = {name.removeprefix(prefix): array for name, array in p.items() if name.startswith(prefix)}
        top_k = config.sparse_top_k if i % config.sparse_every == config.sparse_every - 1 else None
        streams = block(streams, tensors, config.heads, top_k, config.experts_per_token)
    return linear(rmsnorm(sum(streams) / config.streams, p["final_norm.weight"]), embedding)


def cross_entropy(logits, targets, weights):
    """sum of weight * -log p(target)"""
    loss = 0.0
    for at in np.ndindex(targets.shape):
        loss -= weights[at] * math.log(softmax(logits[at])[targets[at]])
    return loss


def load_balance(probs, counts):
    """E * sum_i f_i P_i"""
    N, E = probs.shape
    loss = 0.0
    for i in range(E):
        f = counts[i] / sum(counts)
        P = sum(probs[n, i] for n in range(N)) / N
        loss += E * f * P
    return loss


def leave_one_out(rewards):
    """Each reward minus the mean of the others"""
    others = [[reward for j, reward in enumerate(rewards) if j != i] for i in range(len(rewards))]
    return np.array([reward - sum(rest) / len(rest) for reward, rest in zip(rewards, others)])
