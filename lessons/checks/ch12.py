"""Checks of the exercises of chapter 12."""

import tracemalloc
import warnings
from collections.abc import Callable
from concurrent.futures import as_completed
from typing import Any

import numpy as np

from lessons.grading import Exercise, Wrong, compare
from lessons.solutions import ch12
from minimoe.coding.data import batch
from minimoe.layers.layer import Grads
from minimoe.training.parallel import Workers


def check_floor(floor: Callable[..., Any]) -> None:
    ids, _ = batch(0, 1, 4, 129)
    right, answer = ch12.floor(ids), np.asarray(floor(ids.copy()))
    if answer.shape == right.shape and np.allclose(answer.sum() / right.sum(), 1 / np.log(2), atol=0.01):
        raise Wrong("the numbers are bits; nats are wanted: the natural logarithm")
    if answer.shape == right.shape and not answer[np.isclose(right, np.log(16))].any():
        raise Wrong("the hex digits cost nothing; each of the four is drawn from 16")
    try:
        compare("floor(ids)", answer, right, 1e-6)
    except Wrong as wrong:
        if answer.shape != right.shape:
            raise
        row, t = np.unravel_index(np.abs(answer - right).argmax(), right.shape)
        before = bytes(max(int(token) - 4, 0) for token in ids[row, max(0, t - 20) : t + 2] if token > 3)
        raise Wrong(f"{wrong}; the target is the last character of ...{before.decode()!r}") from None


def check_one_array(one_array: Callable[..., Any]) -> None:
    rng = np.random.default_rng(0)
    gate, value = 3 * rng.standard_normal((2, 384, 256)).astype(np.float32)
    before = gate.copy(), value.copy()
    with np.errstate(over="ignore"):
        right = gate.astype(float) / (1 + np.exp(-gate.astype(float))) * value
    answer = one_array(gate, value)
    if not (np.array_equal(gate, before[0]) and np.array_equal(value, before[1])):
        raise Wrong("an argument has changed; backward needs both as they were")
    if getattr(answer, "dtype", None) != np.float32:
        raise Wrong(f"the answer is {getattr(answer, 'dtype', type(answer))}, not float32: some factor was float64")
    compare("silu(gate) * value", answer, right, 1e-6)
    extreme = np.array([[-1e4, -200, 0, 200, 1e4]], np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            answer = one_array(extreme, np.ones_like(extreme))
        except RuntimeWarning as warning:
            raise Wrong(f"a gate of -200 or -10000: {warning}; e^-x overflows there") from None
    compare("silu of -1e4, -200, 0, 200, 1e4", answer, [[0, 0, 0, 200, 1e4]], 1e-6)
    tracemalloc.start()
    try:
        one_array(gate, value)
        peak = tracemalloc.get_traced_memory()[1] / gate.nbytes
    finally:
        tracemalloc.stop()
    if peak > 1.1:
        raise Wrong(f"at its peak it held {peak:.1f} new arrays, not 1")


class MeanOfThem(Workers):
    why = "divides the sum by the number of microbatches"

    def gradients(self, compute, microbatches):
        total, results = super().gradients(compute, microbatches)
        return {p: g / len(microbatches) for p, g in total.items()}, results


class NotZeroed(Workers):
    why = "does not zero the gradients between two batches"

    def gradients(self, compute, microbatches):
        results = list(self.map(compute, microbatches, self.grads))
        return added(self.grads[: len(microbatches)]), results


class LastForgotten(Workers):
    why = "leaves out the last of several microbatches"

    def gradients(self, compute, microbatches):
        zeroed(self.grads)
        results = list(self.map(compute, microbatches, self.grads))
        return added(self.grads[: max(1, len(microbatches) - 1)]), results


class AsTheyEnd(Workers):
    why = "sums in the order in which the microbatches end"

    def gradients(self, compute, microbatches):
        zeroed(self.grads)
        jobs = {self.pool.submit(compute, m, grads): grads for m, grads in zip(microbatches, self.grads)}
        return added([jobs[job] for job in as_completed(jobs)]), [job.result() for job in jobs]


class AllOfThem(Workers):
    why = "adds the arrays of microbatches that this batch does not have"

    def gradients(self, compute, microbatches):
        zeroed(self.grads[: len(microbatches)])
        results = list(self.map(compute, microbatches, self.grads))
        return added(self.grads), results


def zeroed(parts: list[Grads]) -> None:
    for grads in parts:
        for g in grads.values():
            g.fill(0)


def added(parts: list[Grads]) -> Grads:
    total = {p: g.copy() for p, g in parts[0].items()}
    for grads in parts[1:]:
        for p, g in grads.items():
            total[p] += g
    return total


def check_check_workers(check_workers: Callable[..., Any]) -> None:
    try:
        check_workers(Workers)
    except AssertionError as error:
        raise Wrong(f"it refuses minimoe's own Workers: {error}") from None
    for broken in MeanOfThem, NotZeroed, LastForgotten, AsTheyEnd, AllOfThem:
        try:
            check_workers(broken)
        except AssertionError:
            continue
        raise Wrong(f"workers pass whose `gradients` {broken.why}")


EXERCISES = [
    Exercise("floor", 25, check_floor, "Write all 32 examples as lists of ids with a mark in place of each hex digit. How many of "
             "them begin with what was read, and how many with that and the target?"),
    Exercise("one_array", 10, check_one_array, "tanh(x / 2) / 2 + 1/2 is the sigmoid; np.tanh has an `out`, and *= makes no array."),
    Exercise("check_workers", 20, check_check_workers, "What does 1e8 - 1e8 + 1 give in float32, and 1 - 1e8 + 1e8? What would a second "
             "batch show, and a smaller one?"),
]
