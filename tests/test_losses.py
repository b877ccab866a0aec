import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minimoe.config import ModelConfig
from minimoe.gradcheck import Loss, check
from minimoe.model import MiniMoE
from minimoe.training.losses import cross_entropy, leave_one_out, load_balance, policy_gradient
from minimoe.training.objective import pretraining_gradients
from minimoe.training.parallel import Workers
from tests import oracles

SEEDS = st.integers(0, 2**32 - 1)
each_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def draw(seed, B=2, T=7, V=5, scale=2):
    """Random logits, targets and weights, some of them 0."""
    rng = np.random.default_rng(seed)
    weights = rng.uniform(0.5, 2, (B, T)) * (rng.random((B, T)) < 0.7)
    weights[0, 0] = 1
    return scale * rng.standard_normal((B, T, V)), rng.integers(0, V, (B, T)), weights


@settings(max_examples=10)
@given(SEEDS, st.integers(1, 4), st.integers(1, 6), st.integers(2, 9), st.sampled_from([0.1, 2, 30]))
def test_cross_entropy_equals_the_oracle(seed, B, T, V, scale):
    logits, targets, weights = draw(seed, B, T, V, scale)
    loss, dlogits = cross_entropy(logits, targets, weights)
    assert type(loss) is float
    assert np.isclose(loss, oracles.cross_entropy(logits, targets, weights), rtol=1e-12, atol=1e-12)
    assert not dlogits[weights == 0].any() and np.abs(dlogits.sum(axis=-1)).max() < 1e-12


@pytest.mark.parametrize("seed", range(5))
def test_gradients(seed):
    logits, targets, weights = draw(seed)
    probs = np.random.default_rng(seed).dirichlet(np.ones(5), 11)
    for loss, x in [
        (Loss(cross_entropy, targets, weights), logits),
        (Loss(policy_gradient, targets, weights - 0.8, 0.35), logits),
        (Loss(load_balance, np.array([5, 0, 9, 1, 7])), probs),
    ]:
        report = check(loss, x, seed=seed)
        assert report.passed, report


@each_dtype
def test_losses_keep_their_dtype_and_write_to_nothing(dtype):
    logits, targets, weights = draw(0)
    logits, weights = logits.astype(dtype), weights.astype(dtype)
    probs, counts = np.full((6, 3), 1 / 3, dtype), np.arange(3)
    for array in logits, targets, weights, probs, counts:
        array.flags.writeable = False
    assert cross_entropy(logits, targets, weights)[1].dtype == dtype
    assert policy_gradient(logits, targets, weights, 0.35)[1].dtype == dtype
    assert load_balance(probs, counts)[1].dtype == dtype and type(load_balance(probs, counts)[0]) is float


def test_even_logits_cost_the_logarithm_of_the_vocabulary():
    loss, dlogits = cross_entropy(np.full((1, 2, 260), 3.0), np.array([[5, 6]]), np.array([[0.5, 0.5]]))
    assert np.isclose(loss, np.log(260), rtol=1e-14)
    assert np.allclose(dlogits[0, 0, 4:7] * 2, [1 / 260, 1 / 260 - 1, 1 / 260])


@each_dtype
def test_large_logits(dtype):
    logits = np.array([[[1e4, -1e4, 0], [1e4, -1e4, 0]]], dtype)
    loss, dlogits = cross_entropy(logits, np.array([[0, 1]]), np.ones((1, 2), dtype))
    assert loss == 2e4 and dlogits.tolist() == [[[0, 0, 0], [1, -1, 0]]]


def test_all_weights_zero():
    logits, targets, weights = draw(0)
    loss, dlogits = cross_entropy(logits, targets, 0 * weights)
    assert loss == 0 and not dlogits.any()
    loss, dlogits = policy_gradient(logits, targets, 0 * weights, 0.35)
    assert loss == 0 and not dlogits.any()


def test_microbatches_of_unequal_length_give_the_mean_over_tokens():
    """The mean of their means would not."""
    logits, targets, _ = draw(0, B=3, T=7)
    learned = np.arange(7) < np.array([[7], [2], [1]])                    # 7, 2 and 1 tokens
    mean = -np.mean([np.log(oracles.softmax(logits[at])[targets[at]]) for at in zip(*np.nonzero(learned))])
    weights = learned / learned.sum()
    parts = [cross_entropy(logits[rows], targets[rows], weights[rows]) for rows in (slice(0, 1), slice(1, 3))]
    assert np.isclose(sum(loss for loss, _ in parts), mean, rtol=1e-12)
    whole = cross_entropy(logits, targets, weights)[1]
    assert np.allclose(np.concatenate([dlogits for _, dlogits in parts]), whole, rtol=1e-13, atol=0)


@settings(max_examples=10)
@given(SEEDS, st.sampled_from([0.1, 0.35, 1.0, 3.0]))
def test_the_policy_is_scored_at_the_temperature_it_was_sampled_at(seed, temperature):
    logits, targets, weights = draw(seed)
    weights = weights - 1                                                 # advantages have both signs
    loss, _ = policy_gradient(logits, targets, weights, temperature)
    log_p = [np.log(oracles.softmax(logits[at] / temperature)[targets[at]]) for at in np.ndindex(targets.shape)]
    assert np.isclose(loss, -np.sum(weights.ravel() * log_p), rtol=1e-10, atol=1e-10)


def test_a_temperature_near_0_does_not_overflow():
    loss, dlogits = policy_gradient(np.array([[[1, 3, 2.0]]]), np.array([[0]]), np.ones((1, 1)), 1e-4)
    assert loss == pytest.approx(2e4) and np.allclose(dlogits, [[[-1e4, 1e4, 0]]])


@settings(max_examples=10)
@given(st.lists(st.sampled_from([1, 0, -0.1]), min_size=2, max_size=9))
def test_an_advantage_is_over_the_mean_of_the_others(rewards):
    advantages = leave_one_out(np.array(rewards, float))
    assert np.allclose(advantages, oracles.leave_one_out(rewards), rtol=0, atol=1e-14)
    assert abs(advantages.sum()) < 1e-13 and (len(set(rewards)) > 1 or np.abs(advantages).max() < 1e-15)


@settings(max_examples=10)
@given(SEEDS, st.integers(1, 9), st.integers(2, 6), st.integers(1, 3))
def test_load_balance_equals_the_oracle(seed, N, E, k):
    rng = np.random.default_rng(seed)
    probs, counts = rng.dirichlet(np.ones(E), N), rng.multinomial(N * k, rng.dirichlet(np.ones(E)))
    assert np.isclose(load_balance(probs, counts)[0], oracles.load_balance(probs, counts), rtol=1e-13)


def test_load_balance_is_1_at_balance_and_E_at_collapse():
    even, collapsed = np.full((6, 4), 0.25), np.tile([0, 1.0, 0, 0], (6, 1))
    assert load_balance(even, np.array([3, 3, 3, 3]))[0] == 1
    assert load_balance(collapsed, np.array([0, 6, 0, 0]))[0] == 4
    assert load_balance(even, np.array([0, 6, 0, 0]))[0] == 1             # the router is even; only ties decided


def test_opposite_imbalances_of_two_blocks_do_not_cancel():
    """The first block sends everything to expert 0, the second to expert 1: twice the worst, not balance."""
    config = ModelConfig(width=8, heads=1, blocks=2, experts=2, experts_per_token=1, expert_width=5)
    model = MiniMoE(config, np.random.default_rng(0))
    model.embedding.weight.data[:, 0] = 1                                 # after the norm, between 2 and the root of 8
    for block, sign in zip(model.blocks, (1, -1)):
        block.moe.router.weight.data = sign * np.array([[9, *[0] * 7], [-9, *[0] * 7]], np.float32)
    ids = np.random.default_rng(0).integers(0, 260, (5, 8))
    with Workers(1, model.zero_grads) as workers:
        _, record = pretraining_gradients(model, ids, workers)
    assert record["expert_load"].tolist() == [[1, 0], [0, 1]] and np.isclose(record["balance_loss"], 4)
