"""Exercises of chapter 2. Fill in, then: python -m lessons.grade 02"""

import numpy as np


def lookup_backward(dy: np.ndarray, ids: np.ndarray, vocabulary: int) -> np.ndarray:
    """Return the gradient of the table whose rows were looked up, without `np.add.at`.

    ids (B,T), whole numbers from 0 to vocabulary - 1, some of them more than once; dy (B,T,D), float64, the gradient of
    table[ids]. Returns (vocabulary, D), and leaves dy and ids as they are. No `ufunc.at`, nothing from minimoe; no loop over
    positions is needed.
    """
    raise NotImplementedError


def tied_gradient(
    W: np.ndarray, A: np.ndarray, ids: np.ndarray, targets: np.ndarray, weights: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    """Return (loss, dW, dA) of the smallest model: x = W[ids], h = x A^T, logits = h W^T, and cross entropy.

    W (V,D) and A (D,D), float64; ids, targets (N,), whole numbers; weights (N,), what each position counts in the loss, which
    is sum(weights * -log p(target)). dW (V,D), dA (D,D). Some logits are larger than 1000. Nothing from minimoe.
    """
    raise NotImplementedError


def first_loss(vocabulary: int, width: int, spread: float, tied: bool, repeats: float) -> float:
    """Predict the mean loss of a model without blocks before its first step, in nats.

    The table (vocabulary, width) is drawn from normal(0, spread). A byte's row, scaled to the length sqrt(width), is h; the
    logits are h times the rows of the same table if `tied`, or of another one that was drawn alike. `repeats` is the share of
    positions whose target is the byte just read; the other targets are any other byte. Graded against models that are really
    drawn, to within 0.02. No random numbers: formulas only.
    """
    raise NotImplementedError


def which_fault(numeric: np.ndarray, analytic: np.ndarray, ids: np.ndarray) -> str:
    """Say what is wrong with a backward of the tied matrix: "nothing", "head", "lookup" or "repeats".

    numeric (V,D) is the gradient by finite differences, right to about 1e-8 of its largest number; analytic (V,D) is what
    some backward said; ids (B,T) are the ids that were read. "head": the head's part is missing; "lookup": the lookup's part
    is missing; "repeats": of an id that was read several times, only one position was counted. Some ids were read once, some
    several times, some never.
    """
    raise NotImplementedError
