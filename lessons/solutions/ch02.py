"""Answers to the exercises of chapter 2."""

import numpy as np


def lookup_backward(dy: np.ndarray, ids: np.ndarray, vocabulary: int) -> np.ndarray:
    # The lookup as a product with one-hot rows, y = onehot W, has the gradient of any product: onehot^T dy. It takes V times
    # the additions that are needed, and for a table of a few hundred rows is often faster than adding row by row.
    onehot = np.eye(vocabulary)[ids.reshape(-1)]                          # (N,V)
    return onehot.T @ dy.reshape(ids.size, -1)                            # (V,D)


def tied_gradient(
    W: np.ndarray, A: np.ndarray, ids: np.ndarray, targets: np.ndarray, weights: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray]:
    position = np.arange(len(ids))
    x = W[ids]                                                            # (N,D)
    h = x @ A.T                                                           # (N,D)
    logits = h @ W.T                                                      # (N,V)
    shifted = logits - logits.max(axis=1, keepdims=True)                  # no overflow, and the same p
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    loss = -np.sum(weights * log_p[position, targets])

    dlogits = np.exp(log_p)
    dlogits[position, targets] -= 1                                       # each position once, so that -= is safe
    dlogits *= weights[:, None]
    dh = dlogits @ W
    dW = dlogits.T @ h                                                    # W as the head ...
    dA = dh.T @ x
    np.add.at(dW, ids, dh @ A)                                            # ... and W as the table: both into one array
    return float(loss), dW, dA


def first_loss(vocabulary: int, width: int, spread: float, tied: bool, repeats: float) -> float:
    # h has length sqrt(D), so its product with a row drawn independently is normal with variance D spread^2, and the mean
    # of e^z over such z is e^(D spread^2 / 2). The row itself, of length about spread sqrt(D), has the product spread D.
    others = np.exp(width * spread**2 / 2)
    if not tied:
        return float(np.log(vocabulary * others))
    own = spread * width
    return float(np.log((vocabulary - 1) * others + np.exp(own)) - repeats * own)


def which_fault(numeric: np.ndarray, analytic: np.ndarray, ids: np.ndarray) -> str:
    # The head touches every row, the lookup only those that were read, and `+=` loses something only where an id repeats.
    # So ask of each kind of row whether any of it is wrong, the rows that only one fault can spoil first.
    wrong = np.abs(analytic - numeric).max(axis=1) > 1e-6 * np.abs(numeric).max()     # (V,)
    times = np.bincount(ids.reshape(-1), minlength=len(numeric))
    if wrong[times == 0].any():
        return "head"
    if wrong[times == 1].any():
        return "lookup"
    return "repeats" if wrong.any() else "nothing"
