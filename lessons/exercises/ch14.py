"""Exercises of chapter 14; `python -m lessons.grade 14` marks them."""

from collections.abc import Callable

import numpy as np


def of_rows(rewards: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the leave-one-out advantage of one sample of each row, of R distinct completions that were drawn `counts` times.

    rewards (R,), counts (R,) whole numbers of 1 or more, 2 or more in all -> (R,). What is left out is one sample, not its
    row: its equals are among the others. Work with counts; don't write the group out, which the grader makes too large for that.
    """
    raise NotImplementedError


def is_unbiased(advantages: Callable[[np.ndarray], np.ndarray]) -> bool:
    """Return whether these advantages make the expected update the gradient of the expected reward, whatever the policy.

    advantages(rewards (G,)) -> (G,), for any G from 2 to 4, the same numbers for the same rewards. The update is the mean over a
    group of advantage * gradient of log pi(sample). Average it over all groups of a policy that you choose, and compare.
    A right answer for one policy and one list of rewards may be luck.
    """
    raise NotImplementedError


def scored(ids: np.ndarray, prompt: np.ndarray, sampled: np.ndarray) -> np.ndarray:
    """Return which targets the policy's loss scores: (R,T) bool, for the targets ids[:, 1:].

    ids (R,T+1): each row a prompt of prompt[r] ids, then sampled[r] ids that the model drew, then padding. prompt, sampled (R,) whole
    numbers, of 1 or more. The last id that was drawn may be EOS, or any other if the completion was cut off. The model may have
    drawn the padding's id, and a prompt may hold EOS.
    """
    raise NotImplementedError
