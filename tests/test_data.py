import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minimoe.coding.data import STREAM, batch, pack
from minimoe.coding.tasks import FAMILIES, SAMPLED, SPLITS, make_task, suffix_at
from minimoe.errors import InputError
from minimoe.tokenizer import BOS, EOS, decode, encode

SUFFIXES_OF = {split: {suffix_at(position) for position in SPLITS[split]} for split in SAMPLED}
seeds = st.integers(0, 2**32)


def whole_examples(row, mask):
    """For each example of a row that is not cut off: the tokens given, the tokens marked."""
    starts = [*np.flatnonzero(row == BOS), len(row)]
    assert starts[0] == 0
    for start, stop in zip(starts, starts[1:]):
        if row[stop - 1] == EOS:
            piece, marked = row[start:stop], mask[start:stop]
            assert not (marked[:-1] & ~marked[1:]).any()  # once marked, marked to the end
            yield piece[~marked].tolist(), piece[marked].tolist()


def named_task(given_tokens):
    family, suffix, text = re.match(r'def (\w+)_(....)\(x\):\n    """(.*)"""\n', decode(given_tokens)).groups()
    return make_task(family, int(suffix, 16), FAMILIES[family].descriptions.index(text))


@pytest.mark.parametrize("split", SAMPLED)
@given(seeds)
def test_rows_parse_back_into_whole_examples_of_the_split(split, seed):
    ids, solution = pack(np.random.default_rng(seed), 3, 300, split)
    for row, mask in zip(ids, solution):
        count = 0
        for given_tokens, marked_tokens in whole_examples(row, mask):
            task = named_task(given_tokens)
            assert given_tokens == [BOS] + encode(task.prompt)
            assert marked_tokens == encode(task.solution) + [EOS]
            assert int(task.name[-4:], 16) in SUFFIXES_OF[split]
            count += 1
        assert count == (row == EOS).sum() >= 3


@given(seeds, st.integers(1, 200))
def test_a_row_is_cut_at_its_length_exactly(seed, length):
    short = pack(np.random.default_rng(seed), 1, length)
    long = pack(np.random.default_rng(seed), 1, 300)
    for cut, whole in zip(short, long):
        np.testing.assert_array_equal(cut, whole[:, :length])


def test_shapes_dtypes_and_rows_that_differ():
    ids, solution = batch(0, 1, rows=32, length=129)
    assert ids.shape == solution.shape == (32, 129)
    assert (ids.dtype, solution.dtype) == (np.int64, bool)
    assert len({row.tobytes() for row in ids}) == 32


def test_a_training_row_holds_a_whole_example():
    for family, row in FAMILIES.items():
        for description in range(len(row.descriptions)):
            task = make_task(family, 0, description)
            assert 1 + len(encode(task.prompt + task.solution)) + 1 <= 129


def test_a_batch_depends_on_seed_and_step_alone():
    first, mask = batch(3, 5, 2, 129)
    assert (first != batch(3, 6, 2, 129)[0]).any()
    assert (first != batch(4, 5, 2, 129)[0]).any()
    again, mask_again = batch(3, 5, 2, 129)
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(mask, mask_again)
    np.testing.assert_array_equal(first, pack(np.random.default_rng([3, STREAM, 5]), 2, 129, "train")[0])


def test_held_out_splits_are_not_packed():
    with pytest.raises(InputError, match="choose from train, replay, rl"):
        pack(np.random.default_rng(0), 1, 10, "dev")
