"""Microbatches on threads.

NumPy lets go of Python's lock inside its loops and matrix products, so two threads, each with a microbatch of its own and
a BLAS held to one thread, keep two cores busier than one thread whose BLAS splits every small product.

A batch is always split into the same microbatches, and their gradients are summed in the same order: the result is the
same bits for any number of threads.
"""

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

MICROBATCHES = 4

T = TypeVar("T")


def settle() -> None:
    """Hold BLAS to one thread, and keep freed memory in the process. A command calls it before it imports NumPy.

    A training step makes and drops hundreds of arrays of a megabyte. By default the C library gives such memory back to
    the system at once, and every new array is paid for again, page by page.
    """
    if "numpy" not in sys.modules:
        for library in ("OPENBLAS", "MKL", "OMP", "BLIS", "VECLIB"):
            os.environ[f"{library}_{'MAXIMUM' if library == 'VECLIB' else 'NUM'}_THREADS"] = "1"
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
        libc.mallopt(M_MMAP_THRESHOLD, 32 << 20)     # arrays up to 32 MiB come from the heap, not from the system
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)    # and the heap does not shrink
        libc.mallopt(M_ARENA_MAX, 1)                 # one heap for all threads
