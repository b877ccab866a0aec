"""What every layer is: a class that holds parameters and nothing else.

    y, saved = layer.forward(x)               pure: same x, same y; touches no argument, keeps nothing on self
    dx = layer.backward(dy, saved, grads)     adds into grads[parameter]; returns the gradient of x
    y, state = layer.step(x, state)           the next t >= 1 positions; only layers that look across positions define it

A gradient belongs to a backward pass, not to a weight, so `grads` is the caller's: `{parameter: array}`. A parameter
that is absent from it is frozen: nobody computes its gradient, but the gradient still flows through its layer.
`saved` is what backward needs of forward; `state` is what the past leaves to the next position. Whole-number and boolean
arrays in `saved` are the discrete choices of a forward (which expert, which key): constants to backward.

Letters in shapes: B batch, T time, D width, H heads, K head width, E experts, F expert width, S streams, V vocabulary,
N = B*T rows, R rows gathered for the experts. `dx` is the gradient of the scalar loss with respect to `x`, of x's shape.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np


class Parameter:
    """A tensor that can be trained. Hashed by identity, so it is its own key in `grads`, even when two layers share it."""

    def __init__(self, data: np.ndarray):
        self.data = data


Grads: TypeAlias = dict[Parameter, np.ndarray]
Rng: TypeAlias = np.random.Generator | None    # draws the initial weights; None leaves them unset, for a loader


class Layer:
    """Base of all layers: finds the parameters they hold, as attributes, in layers, or in lists of either."""

    forward: Callable[..., Any]
    backward: Callable[..., Any]

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Yield (name, parameter) in order of definition; one that is shared appears once, under its first name."""
        seen = set()
        for name, parameter in self._walk(""):
            if parameter not in seen:
                seen.add(parameter)
                yield name, parameter

    def _walk(self, prefix: str) -> Iterator[tuple[str, Parameter]]:
        for name, value in vars(self).items():
            for key, item in enumerate(value) if isinstance(value, (list, tuple)) else [(None, value)]:
                path = f"{prefix}{name}" if key is None else f"{prefix}{name}.{key}"
                if isinstance(item, Parameter):
                    yield path, item
                elif isinstance(item, Layer):
                    yield from item._walk(f"{path}.")

    def zero_grads(self, trainable: Callable[[str], bool] = lambda name: True) -> Grads:
        """Return a zero gradient for every parameter whose name is `trainable`; the others are frozen."""
        return {p: np.zeros_like(p.data) for name, p in self.named_parameters() if trainable(name)}


def normal(rng: Rng, shape: tuple[int, ...], dtype: Any) -> Parameter:
    """Return a parameter drawn from normal(0, 0.02), the initial spread of every matrix; unset if there is no `rng`."""
    return Parameter(np.empty(shape, dtype) if rng is None else rng.normal(0.0, 0.02, shape).astype(dtype))


@dataclass(frozen=True)
class State:
    """What the past leaves to the next position: arrays whose first axis is the batch, one row a sequence."""

    def take(self, rows: Any) -> Self:
        """Return the state of the chosen rows, in that order; a row may be taken more than once."""
        return type(self)(*(array[rows] for array in vars(self).values()))

    @classmethod
    def join(cls, states: Sequence[Self]) -> Self:
        """Return one state of the rows of all `states`, in order."""
        return cls(*(np.concatenate(arrays) for arrays in zip(*(vars(state).values() for state in states))))
