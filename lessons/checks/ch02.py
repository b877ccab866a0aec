"""The exercises of chapter 2: the lookup, the tied head, the first loss, and whose fault it is."""

from collections.abc import Callable

import numpy as np

from lessons.grading import Exercise, Wrong, compare
from minimoe.layers.embedding import Embedding
from minimoe.layers.linear import Linear
from minimoe.training.losses import cross_entropy


def same(answer: object, other: np.ndarray) -> bool:
    return np.shape(answer) == other.shape and np.allclose(answer, other, rtol=1e-7, atol=1e-12)


def check_lookup_backward(function: Callable) -> None:
    if "at" in getattr(getattr(function, "__code__", None), "co_names", ()):
        raise Wrong("this calls np.add.at or another ufunc.at, which it was to do without")
    rng = np.random.default_rng(2)
    for V, B, T, D in [(7, 2, 9, 4), (300, 3, 5, 2), (2, 1, 1, 3)]:
        ids, dy = rng.integers(0, max(1, V - 1), (B, T)), rng.standard_normal((B, T, D))       # the last id is never read
        before = ids.copy(), dy.copy()
        right = np.zeros((V, D))
        for place in np.ndindex(B, T):
            right[ids[place]] += dy[place]
        answer = function(dy, ids, V)
        if not np.array_equal(ids, before[0]) or not np.array_equal(dy, before[1]):
            raise Wrong("dy and ids belong to the caller, and one of them was changed")
        last = np.zeros((V, D))
        last[ids] = dy
        mean = right / np.maximum(np.bincount(ids.reshape(-1), minlength=V), 1)[:, None]
        if same(answer, last) and not same(right, last):
            raise Wrong("only one position of each id counts: an id that is read twice receives two gradients")
        if same(answer, mean) and not same(right, mean):
            raise Wrong("each row is the mean of its positions' gradients; it should be their sum")
        if np.shape(answer) == (int(ids.max()) + 1, D):
            raise Wrong(f"there are {len(answer)} rows for a vocabulary of {V}: ids that are never read have a row too, of zeros")
        compare(f"the table's gradient, V = {V}", answer, right)


def layers(W: np.ndarray, A: np.ndarray, ids: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> dict[str, np.ndarray]:
    """Return the loss, dA and both parts of dW, by the layers of the model."""
    rng = np.random.default_rng(0)
    V, D = W.shape
    table, middle, head = Embedding(V, D, rng, float), Linear(D, D, rng, float), Linear(D, V, rng, float)
    table.weight.data, middle.weight.data, head.weight.data = W, A, W
    x, saved_table = table.forward(ids[None])
    h, saved_middle = middle.forward(x)
    logits, saved_head = head.forward(h)
    loss, dlogits = cross_entropy(logits, targets[None], weights[None])
    grads = table.zero_grads() | middle.zero_grads() | head.zero_grads()
    dx = middle.backward(head.backward(dlogits, saved_head, grads), saved_middle, grads)
    table.backward(dx, saved_table, grads)
    once = np.zeros_like(W)
    once[ids] = dx[0]
    return {"loss": loss, "dA": grads[middle.weight], "head": grads[head.weight], "lookup": grads[table.weight], "once": once}


def check_tied_gradient(function: Callable) -> None:
    rng = np.random.default_rng(5)
    for V, D, N, scale, what in [(7, 3, 9, 1.0, ""), (30, 5, 40, 1.0, ""), (6, 4, 12, 25.0, " with logits above 1000")]:
        W, A = scale * rng.standard_normal((V, D)), rng.standard_normal((D, D))
        ids, targets, weights = rng.integers(0, V - 1, N), rng.integers(0, V, N), rng.uniform(0, 0.2, N)
        given = [W, A, ids, targets, weights]
        before = [array.copy() for array in given]
        right = layers(*given)
        with np.errstate(all="ignore"):
            answer = function(*given)
        if not all(map(np.array_equal, given, before)):
            raise Wrong("one of the arguments was changed; they belong to the caller")
        if not isinstance(answer, tuple) or len(answer) != 3:
            raise Wrong(f"expected (loss, dW, dA), got {type(answer).__name__}")
        loss, dW, dA = answer
        if not np.isfinite(loss) or not np.isfinite(dW).all():
            raise Wrong(f"not finite{what}: subtract each row's largest logit before exp, and take the logarithm of the sum, not of p")
        if np.ndim(loss) == 0 and abs(loss * weights.sum() - right["loss"]) < 1e-9 * right["loss"]:
            raise Wrong("the loss is divided by the sum of the weights; it should be sum(weights * -log p)")
        compare(f"the loss{what}", loss, right["loss"])
        named = {
            "dW is the head's part alone; the table's is missing": right["head"],
            "dW is the table's part alone; the head's is missing": right["lookup"],
            "dW counts only one position of an id that is read several times": right["head"] + right["once"],
            "dW is the mean of its two parts; it should be their sum": (right["head"] + right["lookup"]) / 2,
        }
        for message, wrong in named.items():
            if same(dW, wrong):
                raise Wrong(message)
        compare(f"dW{what}", dW, right["head"] + right["lookup"])
        if np.shape(dA) == (D, D) and same(np.transpose(dA), right["dA"]):
            raise Wrong("dA is transposed: h = x A^T, so A[i,j] multiplies x[j] and adds to h[i]")
        compare(f"dA{what}", dA, right["dA"])


def drawn_loss(vocabulary: int, width: int, spread: float, tied: bool, repeats: float) -> float:
    """Return the mean first loss of models that are drawn, every target of every byte weighed as it should be."""
    losses = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        table = rng.normal(0, spread, (vocabulary, width))
        head = table if tied else rng.normal(0, spread, (vocabulary, width))
        h = table * np.sqrt(width) / np.linalg.norm(table, axis=1, keepdims=True)
        logits = h @ head.T                                               # a row for every byte that may have been read
        log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        own = np.diag(log_p)
        others = (log_p.sum(axis=1) - own) / (vocabulary - 1)
        losses.append(-np.mean(repeats * own + (1 - repeats) * others))
    return float(np.mean(losses))


def check_first_loss(function: Callable) -> None:
    for V, D, spread, tied, repeats in [
        (260, 64, 0.02, False, 0.16), (260, 192, 0.04, False, 0.0), (260, 64, 0.02, True, 0.0), (260, 192, 0.02, True, 0.0),
        (260, 192, 0.02, True, 0.16), (50, 128, 0.03, True, 0.5), (1000, 256, 0.02, True, 1.0),
    ]:  # fmt: skip
        right, answer = drawn_loss(V, D, spread, tied, repeats), function(V, D, spread, tied, repeats)
        if not isinstance(answer, (int, float, np.floating)):
            raise Wrong(f"expected a number, got {answer!r}")
        if not abs(answer - right) <= 0.02:
            told = ""
            if abs(answer - np.log(V)) < 1e-3:
                told = ": ln V holds for equal logits, and these " + ("have the byte just read among them" if tied else "are spread out")
            elif tied and abs(answer - np.log(V) - D * spread**2 / 2) < 1e-3:
                told = ": what does the byte just read get?"
            raise Wrong(f"first_loss({V}, {D}, {spread}, tied={tied}, repeats={repeats}) is {answer:.3f}, and models have {right:.3f}{told}")


def check_which_fault(function: Callable) -> None:
    rng = np.random.default_rng(7)
    for _ in range(6):
        V, D = 12, int(rng.integers(1, 6))
        ids = rng.permutation([1, 1, 4, 5, 7, 7, 7, 9]).reshape(2, 4)
        head, dx = rng.standard_normal((V, D)) * 10 ** rng.uniform(-3, 0, (V, 1)), rng.standard_normal((2, 4, D))
        lookup, once = np.zeros((V, D)), np.zeros((V, D))
        np.add.at(lookup, ids, dx)
        once[ids] = dx
        whole = head + lookup
        numeric = whole + rng.uniform(-1e-8, 1e-8, whole.shape) * np.abs(whole).max()
        for right, analytic in {"nothing": whole, "head": lookup, "lookup": head, "repeats": head + once}.items():
            answer = function(numeric, analytic, ids)
            if answer != right:
                rows = np.flatnonzero(np.abs(analytic - numeric).max(axis=1) > 1e-6 * np.abs(numeric).max())
                where = f"it is wrong in the rows {', '.join(map(str, rows))}" if len(rows) else "no row is off by more than finite differences are"
                raise Wrong(f"it said {answer!r} where the fault is {right!r}; ids {ids.reshape(-1).tolist()} of {V} were read, and {where}")


EXERCISES = [
    Exercise("lookup_backward", 10, check_lookup_backward, "x = onehot(ids) W is a matrix product; what is the gradient of its right factor?"),
    Exercise("tied_gradient", 20, check_tied_gradient, "Begin with log p: logits minus their largest, minus the logarithm of the sum of exp."),
    Exercise("first_loss", 15, check_first_loss, "The mean of e^z is e^(variance / 2) for a normal z around 0. One of the logits is not around 0."),
    Exercise("which_fault", 15, check_which_fault, "Count how often each id was read, and look at the rows read never, once, and more often."),
]
