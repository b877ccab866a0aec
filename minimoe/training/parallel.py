"""Microbatches on threads.

NumPy lets go of Python's lock inside its loops and matrix products, so two threads, each with a microbatch of its own and
a BLAS held to one thread, keep two cores busier than one thread whose BLAS splits every small product.

A batch is always split into the same microbatches, and their gradients are summed in the same order: the result is the
same bits for any number of threads.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from minimoe.layers.layer import Grads, Parameter

MICROBATCHES = 4

T = TypeVar("T")


class Workers:
    """Threads that compute the gradients of a batch, a microbatch each. Use as a context manager."""

    def __init__(self, threads: int, zero_grads: Callable[[], Grads]):
        self.pool = ThreadPoolExecutor(threads)
        self.map = self.pool.map
        self.grads = [zero_grads() for _ in range(MICROBATCHES)]          # kept, and zeroed for every batch

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *exception: Any) -> None:
        self.pool.shutdown()

    def gradients(self, compute: Callable[[Any, Grads], T], microbatches: Sequence[Any]) -> tuple[Grads, list[T]]:
        """Return the sum over microbatches of the gradients that `compute(microbatch, grads)` adds, and what it returned.

        The sum is valid until the next call. At most MICROBATCHES of them.
        """

        def one(microbatch: Any, grads: Grads) -> T:
            for g in grads.values():
                g.fill(0)
            return compute(microbatch, grads)

        results = list(self.map(one, microbatches, self.grads))
        total, *others = self.grads[: len(microbatches)]

        def add(parameter: Parameter) -> None:
            for grads in others:
                total[parameter] += grads[parameter]

        list(self.map(add, total))
        return total, results


def microbatches(*arrays: Any) -> list[tuple[Any, ...]]:
    """Split the rows of the arrays into MICROBATCHES parts, fewer if there are fewer rows."""
    parts = min(MICROBATCHES, len(arrays[0]))
    rows = len(arrays[0])
    cuts = [slice(i * rows // parts, (i + 1) * rows // parts) for i in range(parts)]
    return [tuple(array[cut] for array in arrays) for cut in cuts]
