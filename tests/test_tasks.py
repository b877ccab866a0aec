import ast
import zlib
from itertools import permutations

import numpy as np
import pytest

from minimoe.coding.tasks import (
    FAMILIES, PER_FAMILY, SAMPLED, SPLITS, SUFFIXES, TRAINED, fixed_tasks, make_task, sample_task, suffix_at)
from minimoe.errors import InputError

SUFFIXES_OF = {split: {suffix_at(position) for position in positions} for split, positions in SPLITS.items()}


def tasks_of(family):
    return [make_task(family, suffix) for suffix in (0, 1, 0x9F3C, 0xFFFF)]


def passes(function, task):
    try:
        return all(function(*arguments) == expected for arguments, expected in task.cases)
    except Exception:
        return False


def split_name(task):
    family, suffix = task.name.rsplit("_", 1)
    assert family == task.family and len(suffix) == 4
    return family, int(suffix, 16)


def test_prompt_and_solution_are_exactly_this_text():
    task = make_task("increment", 0x9F3C)
    assert task.name == "increment_9f3c"
    assert task.prompt == 'def increment_9f3c(x):\n    """Add one to x."""\n'
    assert task.solution == "    return x + 1\n"
    assert {family: make_task(family, 0).solution.strip() for family in FAMILIES} == {
        "increment": "return x + 1", "double": "return x * 2", "even": "return x % 2 == 0", "square": "return x * x",
        "is_positive": "return x > 0", "absolute": "return abs(x)", "reverse": "return x[::-1]",
        "total": "return sum(x)"}
    assert TRAINED == ("increment", "double", "even")


def test_every_prompt_with_its_solution_is_one_documented_function():
    descriptions = set()
    for family in FAMILIES:
        for description, text in enumerate(FAMILIES[family].descriptions):
            task = make_task(family, 0xABCD, description)
            (function,) = ast.parse(task.prompt + task.solution).body
            assert (function.name, function.args.args[0].arg) == (task.name, task.argument)
            assert ast.get_docstring(function) == text
            descriptions.add(text)
    assert len(descriptions) == 4 * len(FAMILIES)  # none is shared: each says which family it is


@pytest.mark.parametrize("family", FAMILIES)
def test_canonical_solution_passes(family):
    for task in tasks_of(family):
        namespace = {}
        exec(task.prompt + task.solution, namespace)
        assert passes(namespace[task.name], task)
        assert len({repr(arguments) for arguments, _ in task.cases}) >= 12


@pytest.mark.parametrize("family", FAMILIES)
def test_only_the_familys_own_solution_passes(family):
    for task in tasks_of(family):
        assert [other for other in FAMILIES if passes(FAMILIES[other].reference, task)] == [family]


@pytest.mark.parametrize("family", FAMILIES)
def test_identity_and_tables_of_three_cases_fail(family):
    for task in tasks_of(family):
        assert not passes(lambda x: x, task)
        # A table passes if it lists every argument whose answer is not its default. A constant lists none.
        for default in [None] + [expected for _, expected in task.cases]:
            unlisted = {repr(arguments) for arguments, expected in task.cases if expected != default}
            assert len(unlisted) > 3, f"a table of {len(unlisted)} passes with the default {default!r}"


@pytest.mark.parametrize("family", FAMILIES)
def test_table_of_another_tasks_cases_fails(family):
    for task, other in permutations(tasks_of(family), 2):
        table = {repr(arguments): expected for arguments, expected in other.cases}
        for default in [None] + [expected for _, expected in task.cases]:
            assert not passes(lambda *arguments: table.get(repr(arguments), default), task)


def test_drawn_cases_are_pinned():
    assert [x for (x,), _ in make_task("double", 0xBFA8).cases[12:]] == [86, 87, -806, -807]
    assert [x for (x,), _ in make_task("reverse", 0xBFA8).cases[12:14]] == ["cebsf", "nolpvtc"]
    assert [x for (x,), _ in make_task("total", 0xBFA8).cases[12:14]] == [[33, 47, -98], [71, -88, -51, 85]]
    assert make_task("double", 0xBFA8, 0).cases == make_task("double", 0xBFA8, 3).cases


def test_permutation_is_pinned_and_uses_every_suffix_once():
    order = [suffix_at(position) for position in range(SUFFIXES)]
    assert sorted(order) == list(range(65536))
    assert order[1:6] == [0x845B, 0x0C7D, 0xC47B, 0xCFC0, 0xBFA8]
    assert zlib.crc32(np.array(order, "<u2").tobytes()) == 1286418391


def test_splits_cover_every_position_once():
    assert sorted(position for positions in SPLITS.values() for position in positions) == list(range(SUFFIXES))
    assert list(SPLITS) == [*SAMPLED, *PER_FAMILY] == ["train", "replay", "rl", "dev", "confirm"]


@pytest.mark.parametrize("split", SPLITS)
def test_each_split_is_a_fair_sample_of_hex_digits(split):
    suffixes = np.array(sorted(SUFFIXES_OF[split]))
    for shift in (0, 4, 8, 12):
        share = np.bincount(suffixes >> shift & 15, minlength=16) * 16 / len(suffixes)
        assert share.min() > 0.7 and share.max() < 1.3


@pytest.mark.parametrize("split", SAMPLED)
def test_samples_are_uniform_and_stay_in_their_split(split):
    rng = np.random.default_rng(0)
    tasks = [sample_task(split, rng) for _ in range(1600)]
    named = [split_name(task) for task in tasks]
    assert {suffix for _, suffix in named} <= SUFFIXES_OF[split]
    for family in FAMILIES:
        mine = [task for task in tasks if task.family == family]
        assert 140 <= len(mine) <= 260
        for text in FAMILIES[family].descriptions:
            assert 25 <= sum(text in task.prompt for task in mine) <= 75
    position_of = {suffix_at(position): position for position in SPLITS[split]}
    ends = SPLITS[split].start, SPLITS[split].stop
    eighths, _ = np.histogram([position_of[suffix] for _, suffix in named], 8, ends)
    assert eighths.min() >= 140 and eighths.max() <= 260


def test_sampling_can_be_held_to_some_families():
    rng = np.random.default_rng(0)
    assert {sample_task("rl", rng, TRAINED).family for _ in range(50)} == set(TRAINED)


@pytest.mark.parametrize("split, per_family", [("dev", 32), ("confirm", 8)])
def test_fixed_tasks_are_distinct_balanced_and_in_their_split(split, per_family):
    tasks = fixed_tasks(split)
    assert [task.family for task in tasks] == [family for family in FAMILIES for _ in range(per_family)]
    named = [split_name(task) for task in tasks]
    assert len(set(named)) == 8 * per_family
    assert {suffix for _, suffix in named} <= SUFFIXES_OF[split]
    for text in (text for family in FAMILIES.values() for text in family.descriptions):
        assert sum(f'"{text}"' in task.prompt for task in tasks) == per_family // 4
    assert tasks == fixed_tasks(split, per_family, seed=7) != fixed_tasks(split, per_family, seed=8)


def test_fixed_tasks_are_pinned():
    assert fixed_tasks("confirm")[0].name == "increment_009e"
    for split, checksum in ("dev", 1596488998), ("confirm", 1443256245):
        assert zlib.crc32(" ".join(task.name for task in fixed_tasks(split)).encode()) == checksum


def test_fewer_fixed_tasks_are_the_first_of_more():
    few, many = fixed_tasks("dev", 8), fixed_tasks("dev", 32)
    for family in FAMILIES:
        assert [t for t in few if t.family == family] == [t for t in many if t.family == family][:8]


def test_a_split_gives_all_it_holds_and_no_more():
    assert len({task.name for task in fixed_tasks("dev", 2048)}) == 8 * 2048
    for per_family in (2049, 0, -1):
        with pytest.raises(InputError, match="dev holds from 1 to 2048"):
            fixed_tasks("dev", per_family)


def test_unknown_names_are_refused_with_the_valid_ones():
    rng = np.random.default_rng(0)
    for split in ("test", "dev", "confirm"):
        with pytest.raises(InputError, match=f"'{split}'; choose from train, replay, rl$"):
            sample_task(split, rng)
    for split in ("test", "train"):
        with pytest.raises(InputError, match=f"'{split}'; choose from dev, confirm$"):
            fixed_tasks(split)
    families = ", ".join(FAMILIES)
    with pytest.raises(InputError, match=f"unknown family 'cube'; choose from {families}$"):
        sample_task("rl", rng, ["even"] * 99 + ["cube"])
    with pytest.raises(InputError, match=f"unknown family 'cube'; choose from {families}$"):
        make_task("cube", 0)
    for suffix in (-1, 65536):
        with pytest.raises(InputError, match=f"suffix {suffix} is not four hex digits"):
            make_task("even", suffix)
    for description in (-1, 4):
        with pytest.raises(InputError, match=f"unknown description {description}; choose from 0, 1, 2, 3$"):
            make_task("even", 0, description)
