"""Check every backward pass against finite differences.

    python -m minimoe.gradcheck                     every layer, the losses, the whole model
    python -m minimoe.gradcheck moe rope            only these

A layer's output is projected on a random array r, which makes one number, f = sum(r * y). Its gradient along a coordinate,
or along a random direction of a whole tensor, is (f(x + h) - f(x - h)) / 2h up to an error of order h^2, and must be what
backward says when it is handed r. All in float64, where h = 1e-5 leaves about ten digits.

To check a layer of your own: `print(check(layer, x))`. Its forward must be smooth at x but for choices that it records in
`saved` as whole-number or boolean arrays; a probe that changes a choice is drawn again.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from minimoe.cli import Parser, non_negative_int, output_file, run, settle

if __name__ == "__main__":
    settle()    # before NumPy is imported

import numpy as np

from minimoe.config import PRESETS
from minimoe.errors import InputError
from minimoe.layers.block import Block
from minimoe.layers.embedding import Embedding
from minimoe.layers.experts import Expert, Experts
from minimoe.layers.hyper_connection import Read, Write
from minimoe.layers.layer import Grads, Layer, Parameter
from minimoe.layers.linear import Linear
from minimoe.layers.linear_attention import LinearAttention
from minimoe.layers.moe import MoE
from minimoe.layers.rmsnorm import RMSNorm
from minimoe.layers.rope import Rope
from minimoe.layers.sparse_attention import SparseAttention
from minimoe.model import MiniMoE
from minimoe.training.losses import cross_entropy, load_balance, policy_gradient

STEP = 1e-5
RELATIVE = 1e-6      # accepted: |analytic - numeric| <= RELATIVE * (|analytic| + |numeric|) + rounding
SEEN = 1e-4          # a tensor whose gradient is smaller than this everywhere shows nothing
REDRAWS = 20
STREAM = 99          # keeps r apart from inputs that were drawn with the same seed: an r equal to x can hide a fault

# An objective makes one number of a layer's output, as terms to be summed: (y, saved) -> terms, dy, keywords of backward
Objective: TypeAlias = Callable[[np.ndarray, Any], tuple[np.ndarray, np.ndarray, dict[str, Any]]]


@dataclass
class Row:
    """The verdict on one tensor."""

    tensor: str
    coordinates: int = 0        # probed one by one, beside one random direction
    error: float = 0.0          # largest |analytic - numeric| over largest |analytic| + |numeric|
    verdict: str = "ok"
    detail: str = ""            # of the worst probe, when it fails


@dataclass
class Report:
    """The table that `check` returns; `print` it."""

    name: str
    rows: list[Row] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return all(row.verdict in ("ok", "zero") for row in self.rows)

    def __str__(self) -> str:
        width = max(len(row.tensor) for row in self.rows)
        lines = [f"{self.name:{width + 2}} coordinates  worst relative error  verdict"]
        for row in self.rows:
            error = "-" if row.verdict == "zero" else f"{row.error:.1e}"
            lines.append(f"  {row.tensor:{width}} {row.coordinates:11d}  {error:>20}  {row.verdict}")
            lines += [f"    {row.detail}"] * bool(row.detail)
        return "\n".join(lines)


def check(
    layer: Layer,
    *inputs: np.ndarray,
    name: str = "",
    objective: Objective | None = None,
    zero: Sequence[str] = (),
    coordinates: int = 6,
    seed: int = 0,
) -> Report:
    """Compare layer.backward with finite differences of layer.forward(*inputs), tensor by tensor.

    Every parameter and every float64 input is probed at `coordinates` random places and along one random direction.
    Tensors named in `zero` must have no gradient; every other must have one that can be seen. Neither the layer nor the
    inputs are changed. Raises `InputError` for float32, for a backward that returns other gradients than inputs, and for one
    that changes its inputs.
    """
    rng = np.random.default_rng([seed, STREAM])
    inputs = tuple(np.array(x) for x in inputs)                           # our own: they will be perturbed
    floats = [x for x in inputs if x.dtype.kind == "f"]
    parameters = dict(layer.named_parameters())
    if not all(x.size for x in inputs) or not (floats or parameters):
        raise InputError("there is nothing to check: the layer has no parameter and no float input, or an input is empty")
    if any(x.dtype != np.float64 for x in [*floats, *(p.data for p in parameters.values())]):
        raise InputError("gradient checks need float64; make the layer and its inputs with dtype=np.float64")

    before = [x.copy() for x in inputs]
    y, saved = layer.forward(*inputs)
    objective = objective or projection(rng.standard_normal(y.shape))
    terms, dy, keywords = objective(y, saved)
    choices = list(discrete(saved))
    grads = layer.zero_grads()
    for _ in range(2):                                                    # backward adds, and spoils nothing in `saved`
        dinputs = layer.backward(dy, saved, grads, **keywords)
    if not all(map(np.array_equal, inputs, before)):
        raise InputError("forward or backward changed its input in place, which belongs to the caller")
    dinputs = dinputs if isinstance(dinputs, tuple) else (dinputs,) if floats else ()
    if [np.shape(dx) for dx in dinputs] != [x.shape for x in floats]:
        raise InputError("backward must return one gradient for each float input of forward, of the same shape")

    tensors = [(f"input {i}" if len(floats) > 1 else "input", x, dx) for i, (x, dx) in enumerate(zip(floats, dinputs))]
    tensors += [(name, p.data, grads[p] / 2) for name, p in parameters.items()]
    rounding = 10 * np.finfo(np.float64).eps * np.abs(terms).sum() / STEP

    def difference(x: np.ndarray, direction: np.ndarray) -> float | None:
        """Return the numeric derivative of the objective along `direction`, None if a choice changes on the way."""
        here = x.copy()
        ends: list[np.ndarray] = []
        try:
            for sign in (1, -1):
                x[...] = here + sign * STEP * direction
                y, saved = layer.forward(*inputs)
                if not all(map(np.array_equal, choices, discrete(saved))):
                    return None
                ends.append(objective(y, saved)[0])
        finally:
            x[...] = here
        return float(np.sum(ends[0] - ends[1]) / (2 * STEP))

    report = Report(name or type(layer).__name__)
    for tensor, x, dx in tensors:
        probes = []                                                       # (where, analytic, numeric)
        for where in [*rng.permutation(x.size)[:coordinates].tolist(), "direction"]:
            for _ in range(REDRAWS):
                direction: np.ndarray = np.zeros(x.size)
                if where == "direction":
                    direction = rng.standard_normal(x.size)
                    direction /= np.linalg.norm(direction)
                else:
                    direction[where] = 1
                direction = direction.reshape(x.shape)
                numeric = difference(x, direction)
                if numeric is not None:
                    probes.append((where, float(np.sum(dx * direction)), numeric))
                    break
                where = "direction" if where == "direction" else int(rng.integers(x.size))
        report.rows.append(judge(tensor, dx, probes, rounding, tensor in zero))
    return report


def judge(tensor: str, dx: np.ndarray, probes: list, rounding: float, zero: bool) -> Row:
    """Return the verdict on the probes (where, analytic, numeric) of one tensor."""
    row = Row(tensor, coordinates=sum(where != "direction" for where, _, _ in probes))
    if not probes:
        return Row(tensor, verdict="FAILED", detail=f"every probe of h = {STEP:g} changed a choice: draw other inputs")
    where, analytic, numeric = max(probes, key=lambda probe: np.nan_to_num(abs(probe[1] - probe[2]), nan=np.inf))
    size = max(abs(a) + abs(n) for _, a, n in probes)
    row.error = abs(analytic - numeric) / size if size else 0.0
    largest = np.abs(dx).max()
    if not abs(analytic - numeric) <= RELATIVE * size + rounding:         # `not <=`, so that NaN fails
        index = where if where == "direction" else tuple(int(i) for i in np.unravel_index(where, dx.shape))
        row.verdict, row.detail = "FAILED", f"at {index}: analytic {analytic:.9g}, numeric {numeric:.9g}, h = {STEP:g}"
    elif zero:
        row.verdict = "zero"
        if largest > rounding:
            row.verdict, row.detail = "FAILED", f"should have no gradient; the largest is {largest:.2g}"
    elif largest < SEEN:
        row.verdict, row.detail = "FAILED", f"shows nothing: its largest gradient is {largest:.2g}, under {SEEN:g}"
    return row


def discrete(saved: Any) -> Iterator[np.ndarray]:
    """Yield the choices in `saved`: its whole-number and boolean arrays."""
    if isinstance(saved, np.ndarray):
        if saved.dtype.kind in "iub":
            yield saved
    elif isinstance(saved, dict):
        yield from discrete(list(saved.values()))
    elif isinstance(saved, (list, tuple)):
        for item in saved:
            yield from discrete(item)


def projection(r: np.ndarray) -> Objective:
    """The objective sum(r * y)."""
    return lambda y, saved: (r * y, r, {})


def projection_and_balance(r: np.ndarray, coefficient: float) -> Objective:
    """The objective sum(r * y) + coefficient * load balance, of one MoE layer."""

    def objective(y: np.ndarray, saved: Any) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
        loss, dprobs = load_balance(saved.probs, saved.counts)
        return np.append(r * y, coefficient * loss), r, {"dprobs": coefficient * dprobs}

    return objective


def training_objective(targets: np.ndarray, weights: np.ndarray, coefficient: float) -> Objective:
    """What pretraining minimises: cross entropy + coefficient * load balance, summed over the blocks of the model."""

    def objective(logits: np.ndarray, saved: Any) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
        loss, dlogits = cross_entropy(logits, targets, weights)
        balance = [load_balance(block.moe.probs, block.moe.counts) for block in saved.blocks]
        terms = np.array([loss, *(coefficient * loss for loss, _ in balance)])
        return terms, dlogits, {"dprobs": [coefficient * dprobs for _, dprobs in balance]}

    return objective


class Loss(Layer):
    """A loss as a layer, so that `check` can check it: a loss returns its gradient at once, so forward saves it."""

    def __init__(self, function: Callable[..., tuple[float, np.ndarray]], *constants: Any):
        self.function, self.constants = function, constants

    def forward(self, x: np.ndarray) -> tuple[np.ndarray, Any]:
        loss, dx = self.function(x, *self.constants)
        return np.array(loss), dx

    def backward(self, dy: np.ndarray, saved: Any, grads: Grads) -> np.ndarray:
        return dy * saved


def randomize(layer: Layer, rng: np.random.Generator) -> Layer:
    """Draw parameters large enough for every path to matter; at the 0.02 of training, rounding alone fails correct code."""
    for name, p in layer.named_parameters():
        if p.data.ndim == 1:
            gain = isinstance(layer, RMSNorm) or name.endswith("norm.weight")
            p.data = 1 + rng.uniform(-0.3, 0.3, p.data.shape) if gain else rng.standard_normal(p.data.shape)
        else:
            embedding = isinstance(layer, Embedding) or name == "embedding.weight"
            p.data = rng.standard_normal(p.data.shape) * (1 if embedding else p.data.shape[-1] ** -0.5)
    return layer


def cases(seed: int = 0) -> dict[str, Callable[[], Report]]:
    """Return the check of every layer, of the losses and of the whole model, by name.

    The sizes that meet in one array differ, so that a swapped axis cannot hide.
    """
    B, T, D, H, K, E, F, S = 2, 11, 10, 3, 4, 5, 7, 6
    rng = np.random.default_rng(seed)
    draw, f = rng.standard_normal, np.float64

    def case(layer: Layer, *inputs: np.ndarray, **options: Any) -> Callable[[], Report]:
        return lambda: check(randomize(layer, np.random.default_rng(seed)), *inputs, seed=seed, **options)

    stream_weights = [Parameter(draw(S)) for _ in range(2)]
    chosen = np.array([rng.permutation(E - 1)[:2] for _ in range(B * T)])      # nobody chooses the last expert
    moe, r = MoE(D, E, F, 2, rng, f), draw((B, T, D))
    ids = rng.integers(0, PRESETS["micro"].vocabulary, (B, T + 1))
    ids[:, -3:] = ids[:, :3]                                              # a token that is seen twice
    last = PRESETS["micro"].blocks - 1
    model_zero = ("blocks.0.read", f"blocks.{last}.write")    # equal streams below the first block; the mean undoes the last
    logits, weights = draw((B, T, E)), rng.uniform(0.5, 2, (B, T))

    def model_case(objective: Objective) -> Callable[[], Report]:
        return case(MiniMoE(PRESETS["micro"], rng, f), ids[:, :-1], objective=objective, zero=model_zero)

    def block_case(attention: Layer) -> Callable[[], Report]:
        return case(Block(S, D, attention, MoE(D, E, F, 2, rng, f), f), draw((S, B, T, D)))

    def linear_attention() -> LinearAttention:
        return LinearAttention(D, H, K, 5, rng, f)

    def sparse_attention() -> SparseAttention:
        return SparseAttention(D, H, K, 5, rng, f)

    return {
        "linear": case(Linear(D, F, rng, f), draw((B, T, D))),
        "embedding": case(Embedding(E, D, rng, f), rng.integers(0, E, (B, T))),
        "rmsnorm": case(RMSNorm(D, f), draw((B, T, D))),
        "rope": case(Rope(K), draw((B, T, H, K))),
        "linear_attention": case(linear_attention(), draw((B, T, D))),
        "sparse_attention": case(sparse_attention(), draw((B, T, D))),
        "expert": case(Expert(D, F, rng, f), draw((B * T, D))),
        "experts": case(Experts(E, D, F, rng, f), draw((B * T, D)), rng.uniform(0.2, 1, (B * T, 2)), chosen),
        "moe": case(moe, draw((B, T, D)), objective=projection_and_balance(r, 3.0)),
        "read": case(Read(stream_weights[0]), draw((S, B, T, D))),
        "write": case(Write(stream_weights[1]), draw((S, B, T, D)), draw((B, T, D))),
        "block_linear": block_case(linear_attention()),
        "block_sparse": block_case(sparse_attention()),
        "cross_entropy": case(Loss(cross_entropy, rng.integers(0, E, (B, T)), weights), logits),
        "policy_gradient": case(Loss(policy_gradient, rng.integers(0, E, (B, T)), draw((B, T)), 0.7), logits),
        "load_balance": case(Loss(load_balance, np.array([5, 0, 9, 1, 7])), rng.uniform(0, 1, (T, E))),
        "model": model_case(projection(draw((B, T, PRESETS["micro"].vocabulary)))),
        "model_training_loss": model_case(training_objective(ids[:, 1:], weights, 0.01)),
    }


def main() -> None:
    parser = Parser(description=__doc__)
    names = cases()
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"what to check: {', '.join(names)}; nothing means all")
    parser.add_argument("--seed", type=non_negative_int, default=0, help="of inputs, parameters and probes")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="also write the table there")
    args = parser.parse_args()
    for name in args.names:
        if name not in names:
            raise InputError(f"nothing is called {name!r}; there are {', '.join(names)}")

    reports = []
    for name, checked in cases(args.seed).items():
        if name in args.names or not args.names:
            reports.append(checked())
            reports[-1].name = name
            print(reports[-1], flush=True)
    failed = [report.name for report in reports if not report.passed]
    print(f"\n{len(reports) - len(failed)} of {len(reports)} passed" + f"; failed: {', '.join(failed)}" * bool(failed))
    if args.json:
        args.json.write_text(json.dumps([asdict(report) for report in reports], indent=2) + "\n")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    run(main)
