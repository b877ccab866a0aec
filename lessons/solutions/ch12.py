"""Solutions of chapter 12."""

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from minimoe.coding.tasks import FAMILIES, make_task
from minimoe.layers.layer import Parameter
from minimoe.tokenizer import BOS, EOS, FIRST_BYTE, encode

HEX = {FIRST_BYTE + ord(digit) for digit in "0123456789abcdef"}
ANY = -1    # stands in a template for a hex digit


def floor(ids: np.ndarray) -> np.ndarray:
    """The probability of a next token is the share of the templates that agree with it, among those that agree so far."""
    templates = []
    for family, about in FAMILIES.items():
        for description in range(len(about.descriptions)):
            task = make_task(family, 0, description)
            template = [BOS] + encode(task.prompt + task.solution) + [EOS]
            first = 1 + len(encode(f"def {family}_"))
            template[first : first + 4] = [ANY] * 4
            templates.append(template)
    after = Counter(tuple(t[:n]) for t in templates for n in range(len(t) + 1))    # how many begin so

    nats = np.zeros(ids[:, 1:].shape)
    for row, targets in zip(nats, ids):
        read: tuple[int, ...] = ()
        for t, token in enumerate(targets.tolist()):
            digit = read + (ANY,) in after
            chosen = read + (ANY if digit and token in HEX else token,)
            if t:                                                         # the first BOS is given
                row[t - 1] = np.log(16) if digit else np.log(after[read] / after[chosen])
            read = () if token == EOS else chosen                         # the next example is drawn anew
    return nats


def one_array(gate: np.ndarray, value: np.ndarray) -> np.ndarray:
    """1 / (1 + e^-x) = (tanh(x / 2) + 1) / 2: every step of it can be done in place, and tanh does not overflow."""
    hidden = np.multiply(gate, np.float32(0.5))                           # the one new array
    np.tanh(hidden, out=hidden)
    hidden += 1
    hidden *= np.float32(0.5)
    hidden *= gate
    hidden *= value
    return hidden


def check_workers(make: Callable[[int, Callable[[], Any]], Any]) -> None:
    """Numbers whose float32 sum shows its order, microbatches that end in the opposite order, and all of it twice."""
    p = Parameter(np.zeros(1, np.float32))
    values = [1e8, -1e8, 1.0, 1.0]                                        # sum to 2 in this order, to 0 in the opposite one

    def compute(microbatch: tuple[int, float], grads: Any) -> int:
        index, value = microbatch
        time.sleep(0.005 * (len(values) - index))                          # the last is done first
        grads[p] += np.float32(value)
        return index

    for threads in 1, len(values):
        with make(threads, lambda: {p: np.zeros(1, np.float32)}) as workers:
            for _ in range(2):                                            # the second batch must not see the first
                grads, results = workers.gradients(compute, list(enumerate(values)))
                assert results == list(range(len(values))), f"results came in the order {results}"
                assert grads[p] == 2, f"the sum is {grads[p][0]}, not 2"
            grads, _ = workers.gradients(compute, [(0, 3.0)])             # fewer microbatches than there are arrays
            assert grads[p] == 3, f"one microbatch of 3 sums to {grads[p][0]}"
