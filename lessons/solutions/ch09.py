"""Answers to the exercises of chapter 9, four streams."""

import numpy as np

from minimoe.gradcheck import check
from minimoe.layers.hyper_connection import Read, Write
from minimoe.layers.layer import Parameter
from minimoe.layers.softmax import softmax, softmax_backward


def mix_backward(dmixed: np.ndarray, streams: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (dstreams, dweight) of a layer that lets the streams exchange what they carry."""
    share = softmax(weight)                                               # (S,S)
    dshare = dmixed @ streams.T                                           # mixed = share @ streams
    dstreams = share.T @ dmixed                                           # the same: what stream r gave, it hears of
    return dstreams, softmax_backward(dshare, share)


def zero_gradients(blocks: int, streams: int, reads_equal: bool, writes_equal: bool) -> set[str]:
    """Return the names of the stream weights that have no gradient, such as {"blocks.0.read"}, without computing one.

    A weight feels only what differs between streams. A `read` feels the streams: they differ above the first block whose
    `write` is unequal. A `write` feels the gradients of the streams: they differ below the last block whose `read` is.
    """
    names = [f"blocks.{i}" for i in range(blocks)]
    all_reads, all_writes = {f"{name}.read" for name in names}, {f"{name}.write" for name in names}
    if streams == 1:                                                      # the softmax of one number is 1
        return all_reads | all_writes
    reads = all_reads if writes_equal else {"blocks.0.read"}
    writes = all_writes if reads_equal else {f"blocks.{blocks - 1}.write"}
    return reads | writes


def backward_is_right() -> bool:
    """Return whether the backward passes of `Read` and `Write`, as they are now in minimoe, are right.

    Streams that differ, weights that differ, and more than one stream. Equal weights hide every fault in which a share
    was replaced by the mean share, equal streams leave the weights without a gradient.
    """
    rng = np.random.default_rng(0)
    streams, update, weight = rng.standard_normal((3, 2, 4, 5)), rng.standard_normal((2, 4, 5)), np.array([0.5, -1.0, 1.5])
    return check(Read(Parameter(weight)), streams).passed and check(Write(Parameter(weight)), streams, update).passed
