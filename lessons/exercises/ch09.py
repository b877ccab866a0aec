"""Exercises of chapter 9, four streams. Write the bodies, then: python -m lessons.grade 09"""

import numpy as np


def mix_backward(dmixed: np.ndarray, streams: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (dstreams, dweight) of a layer that lets the streams exchange what they carry.

    Its forward is mixed[s] = sum over r of share[s,r] * streams[r], where share (S,S) is the softmax of each row of
    `weight` (S,S). streams, mixed and dmixed are (S,N). `minimoe.layers.softmax` may be used.
    """
    raise NotImplementedError


def zero_gradients(blocks: int, streams: int, reads_equal: bool, writes_equal: bool) -> set[str]:
    """Return the names of the stream weights that have no gradient, such as {"blocks.0.read"}, without computing one.

    The model has `blocks` blocks and S = `streams` streams. If `reads_equal`, the S numbers of every `read` are the same,
    if not, no two are; `writes_equal` says so of every `write`. All else is drawn at random.
    """
    raise NotImplementedError


def backward_is_right() -> bool:
    """Return whether the backward passes of `Read` and `Write`, as they are now in minimoe, are right.

    You may use `minimoe.gradcheck.check(layer, *inputs).passed`. What is asked is what to hand it: streams, an update and
    weights of your own, at which no fault can hide. Ten are planted, one at a time.
    """
    raise NotImplementedError
