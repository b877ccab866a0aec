from itertools import combinations, product

import numpy as np
import pytest

from minimoe.coding import scoring
from minimoe.coding.scoring import Attempt, attempt, bootstrap, greedy, judge, mcnemar, pass_at_k, solved_by_family
from minimoe.coding.tasks import FAMILIES, fixed_tasks, make_task
from minimoe.coding.verifier import Verdict
from minimoe.tokenizer import BOS, EOS, PAD, SEP, encode

TASKS = fixed_tasks("dev", 1)
RIGHT = [encode(task.solution) for task in TASKS]


def answering(monkeypatch, answers):
    """Let `generate` give these answers; return the list of its calls."""
    calls = []

    def fake(model, prompts, max_new_tokens=32, temperature=0.0, seed=0):
        calls.append((model, prompts, max_new_tokens, temperature, seed))
        return answers

    monkeypatch.setattr(scoring, "generate", fake)
    return calls


def test_a_task_is_solved_by_a_function_that_passes_and_ends(monkeypatch):
    answers = [
        RIGHT[0] + [EOS],
        RIGHT[1],                                                         # never ends
        RIGHT[2][:-2] + [EOS],                                            # ends too soon
        encode("    return x ** 2\n") + [EOS],                            # not the canonical one, but as good
        encode("    return x >= 0\n") + [EOS],                            # wrong at 0
        RIGHT[0] + [EOS],                                                 # another task's
        [EOS],
        [],                                                               # a prompt that fills the context
    ]
    calls = answering(monkeypatch, answers)
    attempts = greedy("the model", TASKS)
    ((model, prompts, max_new_tokens, temperature, _),) = calls
    assert model == "the model" and temperature == 0
    assert prompts == [[BOS] + encode(task.prompt) for task in TASKS]
    assert max_new_tokens > max(map(len, RIGHT))                          # room for the longest solution and its EOS
    assert [attempt.task for attempt in attempts] == TASKS
    assert [attempt.solved for attempt in attempts] == [True, False, False, True, False, False, False, False]
    status = ["passed", "invalid", "invalid", "passed", "failed", "failed", "invalid", "invalid"]
    assert [attempt.verdict.status for attempt in attempts] == status
    assert attempts[1].completion == TASKS[1].solution and attempts[6].completion == ""
    assert solved_by_family(attempts) == dict(zip(FAMILIES, [1, 0, 0, 1, 0, 0, 0, 0]))


def test_every_canonical_solution_needs_its_end():
    for task, ids in zip(TASKS, RIGHT):
        assert judge(task, ids + [EOS]) == Verdict("passed", len(task.cases), len(task.cases), "")
        assert judge(task, ids) == Verdict("invalid", 0, len(task.cases), "did not end")
        for special in PAD, BOS, SEP:
            hidden = [*ids[:4], special, *ids[4:], EOS]
            assert judge(task, hidden) == Verdict("invalid", 0, len(task.cases), "has a special id inside")


def test_samples_are_kept_with_their_task(monkeypatch):
    right, wrong = [ids + [EOS] for ids in RIGHT], encode("    return x\n") + [EOS]
    calls = answering(monkeypatch, [wrong, right[0], right[0], right[1], wrong, wrong])
    attempts = attempt("the model", TASKS[:2], samples=3, temperature=0.7, seed=5)
    assert [[sample.solved for sample in group] for group in attempts] == [[False, True, True], [True, False, False]]
    assert [[sample.task for sample in group] for group in attempts] == [[task] * 3 for task in TASKS[:2]]
    ((_, prompts, _, temperature, seed),) = calls
    assert prompts == [[BOS] + encode(task.prompt) for task in TASKS[:2] for _ in range(3)]
    assert (temperature, seed) == (0.7, 5)


def test_families_are_counted_in_the_order_of_the_tasks_and_none_is_left_out():
    verdicts = {True: Verdict("passed", 16, 16, ""), False: Verdict("failed", 15, 16, "1 of 16 cases wrong")}
    solved = [("total", False), ("double", True), ("even", False), ("double", True), ("total", True), ("double", False)]
    attempts = [Attempt(make_task(family, i), "", verdicts[flag]) for i, (family, flag) in enumerate(solved)]
    assert list(solved_by_family(attempts).items()) == [("total", 1), ("double", 2), ("even", 0)]
    assert solved_by_family([]) == {}


@pytest.mark.parametrize(("samples", "passed", "k"), [(6, 2, 1), (6, 2, 3), (6, 5, 3), (5, 0, 2), (5, 5, 5), (7, 1, 7)])
def test_pass_at_k_is_the_share_of_ks_with_one_that_passes(samples, passed, k):
    chosen = list(combinations([True] * passed + [False] * (samples - passed), k))
    assert pass_at_k(samples, passed, k) == pytest.approx(sum(map(any, chosen)) / len(chosen), abs=1e-15)


@pytest.mark.parametrize(("gains", "losses"), [(0, 0), (5, 0), (1, 9), (9, 1), (4, 4), (5, 6)])
def test_mcnemar_counts_the_splits_at_least_so_uneven(gains, losses):
    splits = [abs(sum(signs)) for signs in product((1, -1), repeat=gains + losses)]
    assert mcnemar(gains, losses) == pytest.approx(np.mean(np.array(splits) >= abs(gains - losses)), abs=1e-15)


def test_bootstrap_is_the_interval_of_the_mean():
    values = [1.0] * 120 + [0.0] * 280
    low, high = bootstrap(values)
    spread = 1.96 * (0.3 * 0.7 / 400) ** 0.5                              # of a mean of 400, as a normal
    assert low == pytest.approx(0.3 - spread, abs=0.004) and high == pytest.approx(0.3 + spread, abs=0.004)
    values = np.random.default_rng(0).random(30)
    assert bootstrap(values) == bootstrap(values) != bootstrap(values, seed=1)
    assert bootstrap([0.25, 0.25, 0.25]) == (0.25, 0.25)
