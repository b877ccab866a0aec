from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from minimoe.config import PRESETS
from minimoe.errors import InputError
from minimoe.layers.layer import Parameter
from minimoe.model import MiniMoE
from minimoe.training import optim

LEARNING_RATE, DECAY = 0.5, 0.4

# Gradients a, b, c of three steps. At betas 0.9 and 0.95 the bias-corrected means are
#     mhat = a    then  (9a + 10b) / 19      then  (81a + 90b + 100c) / 271
#     vhat = a^2  then  (19a^2 + 20b^2) / 39  then  (361a^2 + 380b^2 + 400c^2) / 1141
# and the first number of the matrix, whose gradients are 3, -1, 2, goes
#     2              - 0.5 * (3 / (3 + 1e-8)                                 + 0.4 * 2)              = 1.100000001666667
#     1.10000000167  - 0.5 * ((17 / 19) / (sqrt(191 / 39) + 1e-8)            + 0.4 * 1.10000000167)  = 0.677846651326723
#     0.677846651327 - 0.5 * ((353 / 271) / (sqrt(5229 / 1141) + 1e-8)       + 0.4 * 0.677846651327) = 0.238042501000980
# A gradient of 1e-8 is as large as eps, and tells where eps stands. The vector does not decay.
MATRIX = [2.0, -1.0]
VECTOR = [2.0, 0.0]
TRACE = [  # (gradient of the matrix, of the vector, matrix after the step, vector after the step)
    ([3, 1e-8], [3, 1e-4], [1.10000000166666666, -1.05000000000000000], [1.50000000166666666, -0.49995000499950005]),
    ([-1, 1e-8], [-1, -3e-4], [0.67784665132672277, -1.09000000000000000], [1.29784665166005610, -0.25531295121459770]),
    ([2, 0], [2, 2e-4], [0.23804250100097964, -1.04670678164680298], [0.99361183159965752, -0.26465806786542002]),
]


def adamw(parameters, **options):
    return optim.AdamW(parameters, LEARNING_RATE, weight_decay=DECAY, **options)


def test_adamw_follows_a_trace_worked_by_hand():
    matrix, vector = Parameter(np.array([MATRIX])), Parameter(np.array(VECTOR))
    optimizer = adamw({"matrix": matrix, "vector": vector})
    for g_matrix, g_vector, expected_matrix, expected_vector in TRACE:
        optimizer.step({matrix: np.array([g_matrix], float), vector: np.array(g_vector, float)})
        np.testing.assert_allclose(matrix.data, [expected_matrix], rtol=1e-12)
        np.testing.assert_allclose(vector.data, expected_vector, rtol=1e-12)


def test_clipping():
    matrix, vector = Parameter(np.ones((1, 2))), Parameter(np.ones(1))
    parameters = {"matrix": matrix, "vector": vector}
    grads = {matrix: np.array([[3.0, -4.0]]), vector: np.array([12.0])}
    np.testing.assert_allclose(optim.global_norm(grads), 13, rtol=1e-15)              # 3^2 + 4^2 + 12^2 = 13^2
    for limit, scale in (1, 1 / 13), (6.5, 0.5), (14, 1):                             # only ever shortened
        np.testing.assert_allclose(optim.clip(parameters, grads, limit), (13, scale), rtol=1e-15)
    assert optim.clip(parameters, {matrix: np.zeros((1, 2))}, 1.0) == (0, 1)

    optimizer = adamw(parameters)
    optimizer.step(grads, scale=0.5)
    np.testing.assert_allclose(optimizer.m["matrix"], [[0.15, -0.2]], rtol=1e-14)     # 0.1 * 0.5 g
    np.testing.assert_allclose(optimizer.v["matrix"], [[0.1125, 0.2]], rtol=1e-14)    # 0.05 * (0.5 g)^2
    np.testing.assert_array_equal(grads[matrix], [[3, -4]])                           # the gradient itself stays


def test_a_gradient_that_is_not_a_number_is_refused_by_name():
    parameters = {name: Parameter(np.ones(2, np.float32)) for name in ("frozen", "sound", "bad", "worse")}
    grads = {parameters[name]: np.ones(2, np.float32) for name in ("worse", "bad", "sound")}
    grads[parameters["bad"]][1], grads[parameters["worse"]][0] = np.inf, np.nan
    with pytest.raises(InputError, match="the gradient of bad holds NaN or infinity"):
        optim.clip(parameters, grads, 1.0)
    for g in grads.values():
        g.fill(1e30)                                                      # finite, but the squares are not
    with np.errstate(over="ignore"), pytest.raises(InputError, match="too long"):
        optim.clip(parameters, grads, 1.0)


def test_matrices_decay_and_vectors_do_not_and_a_tied_weight_decays_once():
    model = MiniMoE(PRESETS["micro"], np.random.default_rng(0), np.float64)
    parameters = dict(model.named_parameters())
    before = {name: p.data.copy() for name, p in parameters.items()}
    adamw(parameters).step(model.zero_grads())
    moved = {name for name, p in parameters.items() if (p.data != before[name]).any()}
    expected = {"embedding.weight"}
    for i in range(PRESETS["micro"].blocks):
        for name in "attention.qkv.weight", "attention.out.weight", "moe.router.weight", "moe.experts.up":
            expected.add(f"blocks.{i}.{name}")
        for name in "moe.experts.down", "moe.shared.up.weight", "moe.shared.down.weight":
            expected.add(f"blocks.{i}.{name}")
    assert moved == expected
    for name in moved:
        np.testing.assert_allclose(parameters[name].data, before[name] * (1 - LEARNING_RATE * DECAY), rtol=1e-14)
    assert model.head.weight is model.embedding.weight


def test_a_frozen_parameter_and_its_moments_stay():
    trained, frozen = Parameter(np.ones((2, 2))), Parameter(np.ones((2, 2)))
    optimizer = adamw({"frozen": frozen, "trained": trained})
    optimizer.step({trained: np.ones((2, 2)), frozen: np.full((2, 2), 3.0)})
    arrays = frozen.data, optimizer.m["frozen"], optimizer.v["frozen"]
    before = [array.copy() for array in arrays]
    optimizer.step({trained: np.ones((2, 2))})
    np.testing.assert_array_equal(arrays, before)
    assert (trained.data != frozen.data).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_parameters_and_moments_are_updated_in_place_and_keep_their_dtype(dtype):
    p = Parameter(np.ones((2, 3), dtype))
    optimizer = adamw({"p": p})
    arrays = p.data, optimizer.m["p"], optimizer.v["p"]
    optimizer.step({p: np.ones((2, 3), dtype)}, scale=0.3)
    for now, then in zip((p.data, optimizer.m["p"], optimizer.v["p"]), arrays):
        assert now is then and now.dtype == dtype and (now != 0).all()
    assert (p.data != 1).all()


def test_blocks_on_threads_give_the_bits_of_the_formula_on_whole_tensors():
    rng = np.random.default_rng(0)
    BLOCK = optim.BLOCK
    shapes = {"large": (5, BLOCK // 2 + 3), "stack": (2, 3, 4), "gain": (BLOCK + 1,), "exact": (2, BLOCK)}
    parameters = {name: Parameter(rng.standard_normal(shape).astype(np.float32)) for name, shape in shapes.items()}
    p = {name: x.data.copy() for name, x in parameters.items()}
    m, v = ({name: np.zeros_like(x.data) for name, x in parameters.items()} for _ in range(2))
    optimizer = adamw(parameters)
    with ThreadPoolExecutor(3) as pool:
        for t in 1, 2, 3:
            grads = {x: rng.standard_normal(x.data.shape).astype(np.float32) for x in parameters.values()}
            optimizer.step(grads, 0.7, run=map if t == 2 else pool.map)
            for name, x in parameters.items():
                g = grads[x] * 0.7
                m[name] = 0.9 * m[name] + (1 - 0.9) * g
                v[name] = 0.95 * v[name] + (1 - 0.95) * g * g
                step = m[name] / (1 - 0.9**t) / (np.sqrt(v[name] / (1 - 0.95**t)) + 1e-8)
                decay = DECAY if len(shapes[name]) > 1 else 0.0
                p[name] = p[name] - LEARNING_RATE * (step + decay * p[name])
    for name, x in parameters.items():
        np.testing.assert_array_equal(x.data, p[name], err_msg=name)
