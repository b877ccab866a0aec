"""Checks of what has no backward, against an answer known some other way: AdamW, clipping, RLOO's update, and decoding.

Each returns the same kind of table as a gradient check.
"""

from collections.abc import Callable
from itertools import product
from math import prod, sqrt
from typing import Any

import numpy as np

from minimoe.config import PRESETS
from minimoe.gradcheck import Report, Row, randomize
from minimoe.layers.layer import Parameter
from minimoe.layers.linear_attention import LinearAttention, elu_plus_one
from minimoe.layers.sparse_attention import SparseAttention, SparseState
from minimoe.model import MiniMoE
from minimoe.training import losses, optim


def row(what: str, answer: Any, right: Any, tolerance: float = 1e-11) -> Row:
    """Return the verdict on `answer`, compared number by number with what it should be."""
    answer, right = np.asarray(answer, float), np.asarray(right, float)
    if answer.shape != right.shape:
        return Row(what, right.size, 1.0, "FAILED", f"has the shape {answer.shape}, should be {right.shape}")
    off = np.abs(answer - right)
    size = np.abs(answer).max() + np.abs(right).max()
    found = Row(what, coordinates=right.size, error=float(off.max() / size) if size else 0.0)
    if not np.all(off <= tolerance * (np.abs(answer) + np.abs(right))):   # `not <=`, so that NaN fails
        i = np.unravel_index(np.nan_to_num(off, nan=np.inf).argmax(), off.shape)
        place = f"at {tuple(map(int, i))}: " if right.ndim else ""
        found.verdict, found.detail = "FAILED", f"{place}is {answer[i]:.9g}, should be {right[i]:.9g}"
    return found


def check_adamw() -> Report:
    """Three steps of a matrix and a vector, beside the formula applied to one number at a time."""
    rate, decay, beta1, beta2, eps = 0.5, 0.4, 0.9, 0.95, 1e-8
    start = {"matrix": [2.0, -1.0], "vector": [2.0, 0.0]}
    gradients = {"matrix": [(3, 1e-8), (-1, 1e-8), (2, 0)], "vector": [(3, 1e-4), (-1, -3e-4), (2, 2e-4)]}
    parameters = {"matrix": Parameter(np.array([start["matrix"]])), "vector": Parameter(np.array(start["vector"]))}
    optimizer = optim.AdamW(parameters, rate, betas=(beta1, beta2), weight_decay=decay, eps=eps)
    right = {name: [{"p": p, "m": 0.0, "v": 0.0} for p in values] for name, values in start.items()}
    report = Report("adamw")
    for t in range(1, 4):
        with np.errstate(all="ignore"):
            optimizer.step({p: np.array(gradients[name][t - 1], float).reshape(p.data.shape) for name, p in parameters.items()})
        for name, p in parameters.items():
            for one, g in zip(right[name], gradients[name][t - 1]):
                one["m"] = beta1 * one["m"] + (1 - beta1) * g
                one["v"] = beta2 * one["v"] + (1 - beta2) * g**2
                mhat, vhat = one["m"] / (1 - beta1**t), one["v"] / (1 - beta2**t)
                one["p"] -= rate * (mhat / (sqrt(vhat) + eps) + (decay if name == "matrix" else 0) * one["p"])
            report.rows.append(row(f"{name}, step {t}", p.data.reshape(-1), [one["p"] for one in right[name]]))
    return report


def check_clipping() -> Report:
    """A gradient of length 13 in two tensors, for 3^2 + 4^2 + 12^2 = 13^2, held to limits shorter and longer than that."""
    parameters = {"matrix": Parameter(np.ones((1, 2))), "vector": Parameter(np.ones(1))}
    values = {"matrix": np.array([[3.0, -4.0]]), "vector": np.array([12.0])}
    grads = {p: values[name] for name, p in parameters.items()}
    report = Report("clipping", [row("norm", optim.global_norm(grads), 13)])
    for limit, scale in (1, 1 / 13), (6.5, 0.5), (14, 1):
        report.rows.append(row(f"scale, limit {limit:g}", optim.clip(parameters, grads, limit)[1], scale))
    optimizer = optim.AdamW(parameters, 0.5)
    optimizer.step(grads, scale=0.5)
    report.rows.append(row("m of the matrix", optimizer.m["matrix"], 0.1 * 0.5 * values["matrix"]))
    report.rows.append(row("v of the matrix", optimizer.v["matrix"], 0.05 * (0.5 * values["matrix"]) ** 2))
    return report


def check_rloo() -> Report:
    """A policy of one token out of three: its update, averaged over all groups there are, beside the nudged expected reward."""
    logits, rewards = np.array([0.3, -0.8, 1.1]), np.array([1.0, -0.1, 0.4])
    G, temperature, h = 3, 0.7, 1e-5

    def policy(logits: np.ndarray) -> np.ndarray:
        e = np.exp(logits / temperature)
        return e / e.sum()

    p, update = policy(logits), np.zeros(3)
    for group in product(range(3), repeat=G):
        sampled = np.array(group)
        weights = losses.leave_one_out(rewards[sampled]) / G
        _, dlogits = losses.policy_gradient(np.tile(logits, (G, 1, 1)), sampled[:, None], weights[:, None], temperature)
        update -= prod(p[sampled]) * dlogits.sum(axis=(0, 1))
    nudged = [(policy(logits + h * e) - policy(logits - h * e)) @ rewards / (2 * h) for e in np.eye(3)]
    return Report("rloo", [row("expected update", update, nudged, 1e-7)])


def ways(model: MiniMoE, ids: np.ndarray) -> dict[str, float]:
    """Return how far `step`, called in several ways, is from forward on ids (3,T), T >= 12, or from itself: the largest difference."""
    T, whole = ids.shape[1], model.forward(ids)[0]

    def go_on(t: int, state=None) -> float:
        off = 0.0
        for t in range(t, T):
            y, state = model.step(ids[:, t : t + 1], state)
            off = max(off, np.abs(y[:, 0] - whole[:, t]).max())
        return off

    off = {"prompt": np.abs(model.step(ids)[0] - whole).max(), "ones": go_on(0), "split": go_on(9, model.step(ids[:, :9])[1])}
    rows, lengths = [2, 0], [4, 9, 6]
    _, state = model.step(ids[:, :1])
    y, _ = model.step(ids[rows, 1:2], [part.take(rows) for part in state])
    off["take"] = np.abs(y[:, 0] - whole[rows, 1]).max()
    alone = [model.step(ids[i : i + 1, :n])[1] for i, n in enumerate(lengths)]
    y, _ = model.step(np.array([[ids[i, n]] for i, n in enumerate(lengths)]), [type(parts[0]).join(parts) for parts in zip(*alone)])
    off["join"] = max(np.abs(y[i, 0] - whole[i, n]).max() for i, n in enumerate(lengths))
    _, state = model.step(ids[:, :9])
    off["twice"] = np.abs(model.step(ids[:, 9:10], state)[0] - model.step(ids[:, 9:10], state)[0]).max()
    return off


def remembered(layer: LinearAttention | SparseAttention, x: np.ndarray) -> dict[str, np.ndarray]:
    """Return what the state should be after x (B,T,D), from its definition: sums, and lists, over all positions at once."""
    B, T, _ = x.shape
    projected, _ = layer.qkv.forward(x)
    _, k, v = np.moveaxis(projected.reshape(B, T, 3, layer.heads, layer.head_width), 2, 0)      # (B,T,H,K)
    position = np.full(B, T)
    if isinstance(layer, SparseAttention):
        return {"position": position, "keys": layer.rope.forward(k)[0], "values": v}
    phi = elu_plus_one(k)
    return {"position": position, "kv": np.einsum("bthk,bthv->bhkv", layer.rope.forward(phi)[0], v), "z": phi.sum(axis=1)}


def states(layer: LinearAttention | SparseAttention, x: np.ndarray) -> list[Row]:
    """Return the verdicts on one attention layer by itself, which reads nine positions of x (B,T,D) and then one more."""
    name, whole, rows, state = type(layer).__name__.removesuffix("Attention").lower(), layer.forward(x)[0], [], None
    for what, begin, end in ("nine", 0, 9), ("one more", 9, 10):
        y, state = layer.step(x[:, begin:end], state)
        rows.append(row(f"{name}, {what}: output", y, whole[:, begin:end]))
        right = remembered(layer, x[:, :end])
        rows += [row(f"{name}, {what}: {part}", getattr(state, part), right[part]) for part in right]
    if isinstance(layer, LinearAttention):
        _, after = layer.step(np.zeros_like(x[:, :1]), state)             # its value is 0, so nothing is added
        rows.append(row(f"{name}, a zero: kv", after.kv, state.kv))
    else:
        lengths = [4, 9, 6]
        joined = SparseState.join([layer.step(x[i : i + 1, :n], None)[1] for i, n in enumerate(lengths)])
        kept = [remembered(layer, x[i : i + 1, :n])["keys"] for i, n in enumerate(lengths)]
        last = [joined.keys[i, -n:].ravel() for i, n in enumerate(lengths)]
        rows.append(row(f"{name}, joined: keys", np.concatenate(last), np.concatenate([keys.ravel() for keys in kept])))
    return rows


def check_decoding() -> Report:
    """The micro model's `step`, called in several ways, beside its forward; then each attention layer alone, and its state."""
    rng = np.random.default_rng(0)
    model = randomize(MiniMoE(PRESETS["micro"], None, np.float64), rng)
    report = Report("decoding")
    for way, off in ways(model, rng.integers(4, 260, (3, 16))).items():
        right = off < 1e-9
        report.rows.append(Row(way, 3, off, "ok" if right else "FAILED", "" if right else f"logits differ by {off:.2g}"))
    x = rng.standard_normal((3, 16, model.config.width))
    for kind in LinearAttention, SparseAttention:
        report.rows += states(next(block.attention for block in model.blocks if isinstance(block.attention, kind)), x)
    return report


CHECKS: dict[str, Callable[[], Report]] = {"adamw": check_adamw, "clipping": check_clipping, "rloo": check_rloo, "decoding": check_decoding}
