"""Hyper-connections, a simple form of arXiv 2409.19606: S residual streams, which a block reads and writes by learned weights.

    x = sum_s softmax(read)[s] * streams[s]
    streams[s] += S * softmax(write)[s] * update

With equal weights the mean over streams is a plain residual network. The streams carry the identity alone, so a block's
update leaves out its own input.
"""

from typing import Any

import numpy as np

from minimoe.layers.layer import Grads, Layer, Parameter
from minimoe.layers.softmax import softmax, softmax_backward


class Read(Layer):
    """Mix the streams into a block's input. streams (S,B,T,D) -> x (B,T,D)."""

    def __init__(self, weight: Parameter):
        self.weight = weight

    def forward(self, streams: np.ndarray) -> tuple[np.ndarray, Any]:
        share = softmax(self.weight.data)                                 # (S,)
        x = share @ streams.reshape(len(share), -1)                       # (B*T*D,)
        return x.reshape(streams.shape[1:]), (streams, share)

    def backward(self, dx: np.ndarray, saved: Any, grads: Grads) -> np.ndarray:
        streams, share = saved
        if self.weight in grads:
            dshare = streams.reshape(len(share), -1) @ dx.reshape(-1)     # x = share . streams
            grads[self.weight] += softmax_backward(dshare, share)
        return np.multiply.outer(share, dx)                               # x = share . streams


class Write(Layer):
    """Add a block's update to every stream. streams (S,B,T,D), update (B,T,D) -> streams (S,B,T,D)."""

    def __init__(self, weight: Parameter):
        self.weight = weight

    def forward(self, streams: np.ndarray, update: np.ndarray) -> tuple[np.ndarray, Any]:
        share = softmax(self.weight.data)                                 # (S,)
        written = np.multiply.outer(len(share) * share, update)           # (S,B,T,D)
        written += streams
        return written, (update, share)

    def backward(self, dwritten: np.ndarray, saved: Any, grads: Grads) -> tuple[np.ndarray, np.ndarray]:
        """Return (dstreams, dupdate); dstreams is dwritten itself: the streams pass through unchanged."""
        update, share = saved
        S = len(share)
        flat = dwritten.reshape(S, -1)                                    # (S, B*T*D)
        if self.weight in grads:
            dshare = S * (flat @ update.reshape(-1))                      # written += S * share * update
            grads[self.weight] += softmax_backward(dshare, share)
        dupdate = (S * share) @ flat                                      # written += S * share * update
        return dwritten, dupdate.reshape(update.shape)
