"""Checks of chapter 11."""

import numpy as np

from lessons.grading import Exercise, Wrong, catches_all, compare
from lessons.mutants import MUTANTS
from minimoe.training import optim

BETAS = 0.9, 0.95
ORDERS = "old", "after", "coupled", "unscaled"


def check_first_step(first_step) -> None:
    for beta1, beta2 in BETAS, (0.9, 0.999), (0.5, 0.75):
        for corrected in (True, True), (False, False), (True, False), (False, True):
            answer = first_step(beta1, beta2, *corrected)
            m, v = (1 if yes else 1 - beta for yes, beta in zip(corrected, (beta1, beta2)))
            says = f"betas {beta1}, {beta2}; m {'' if corrected[0] else 'not '}corrected, v {'' if corrected[1] else 'not '}corrected"
            if v != 1 and isinstance(answer, (int, float)) and abs(answer - m / v) < 1e-9:
                raise Wrong(f"{says}: {answer:.4g} divides by v; Adam divides by its root")
            compare(says, answer, m / v**0.5)


def optimizer(order: str, lr: float, decay: float):
    """Return a step that decays in this order, as `decay_order` is handed it."""
    beta1, beta2 = BETAS
    m, v, t = 0.0, 0.0, 0

    def step(p: np.ndarray, g: np.ndarray) -> np.ndarray:
        nonlocal m, v, t
        t += 1
        p, g = np.asarray(p, float), np.asarray(g, float)
        if order == "coupled":
            g = g + decay * p
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g**2
        u = m / (1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + 1e-8)
        if order == "old":
            return p - lr * (u + decay * p)
        if order == "after":
            return (p - lr * u) * (1 - lr * decay)
        return p - lr * u - (decay * p if order == "unscaled" else 0)

    return step


def check_decay_order(decay_order) -> None:
    answers = {order: decay_order(lambda lr, decay: optimizer(order, lr, decay)) for order in ORDERS}
    for answer in answers.values():
        if answer not in ORDERS:
            raise Wrong(f"expected one of {', '.join(ORDERS)}, got {answer!r}")
    told = {order for order, answer in answers.items() if answer == order}
    for order, answer in answers.items():
        if answer != order:
            close = " They differ by lr^2 * decay * u: is your lr large enough to see that, or is u 0?" if {order, answer} == {"old", "after"} else ""
            close = close or (" The loss's part of g hides the decay's; or p was 0, which does not decay." if len(told) == 1 else "")
            raise Wrong(f"{len(told)} of 4 told apart: one that is {order!r} was called {answer!r}.{close}")


def check_check_optimizer(check_optimizer) -> None:
    try:
        check_optimizer(optim)
    except AssertionError as error:
        raise Wrong(f"the code as it stands is right, and your test fails it: {' '.join(str(error).split())[:200]}") from None
    mutants = [mutant for mutant in MUTANTS if mutant.layer in ("adamw", "clipping")]
    catches_all(lambda: check_optimizer(optim), mutants)


EXERCISES = [
    Exercise("first_step", 10, check_first_step, "Write down m and v after one step from 0. What does g do in their ratio?"),
    Exercise("decay_order", 10, check_decay_order, "One step is enough. Choose lr, decay, p and g so that the four formulas give four clearly different numbers."),
    Exercise(
        "check_optimizer", 25, check_check_optimizer,
        "Two steps with different gradients, of a matrix and of a vector, at a large learning rate and a scale of 0.5, beside the formula.",
    ),
]
