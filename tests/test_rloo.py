import json
import os
import re
import shutil
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from minimoe import pretrain, rloo
from minimoe.coding.data import pack
from minimoe.coding.tasks import FAMILIES, TRAINED, make_task, sample_task
from minimoe.coding.verifier import REWARDS, Verdict, verify
from minimoe.config import PRESETS
from minimoe.errors import InputError
from minimoe.gradcheck import randomize
from minimoe.model import MiniMoE
from minimoe.tokenizer import BOS, EOS, FIRST_BYTE, PAD, completion_text, encode
from minimoe.training.losses import leave_one_out
from minimoe.training.objective import sampled_gradients
from minimoe.training.parallel import Workers
from tests import commands, oracles
from tests.commands import bits, lines, records, steps_done

MICRO = PRESETS["micro"]
LAST = f"blocks.{MICRO.blocks - 1}."
UNMOVED = {"blocks.0.read", LAST + "write"}    # their gradient is zero: streams are equal below, and averaged above
TASK = make_task("double", 0x1A2B)
PROMPT = [BOS] + encode(TASK.prompt)
TEMPERATURE = 0.6

RIGHT, WRONG, NONSENSE = (encode(text) + [EOS] for text in ("    return x * 2\n", "    return x\n", "import os"))
LONG, ODD = encode("    return x "), [PAD, 90, BOS, 91, PAD]    # neither ends by itself; the last has ids of no byte
SAMPLES = [WRONG, RIGHT, LONG, ODD, RIGHT, NONSENSE, RIGHT]
OUTCOMES = {tuple(RIGHT): 1.0, tuple(WRONG): 0.0, tuple(NONSENSE): -0.1, tuple(LONG): -0.1, tuple(ODD): -0.1}

command, refused = partial(commands.command, rloo), partial(commands.refused, rloo)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(rloo, "DEV_TASKS", 1)
    monkeypatch.setattr(rloo, "REPLAY_LENGTH", 80)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    MiniMoE(MICRO, np.random.default_rng(0)).save_pretrained(folder)
    return folder


def verdict(status):
    return Verdict(status, 0, 1, status)


@pytest.fixture
def varied(monkeypatch):
    """Judge by the first id, so that an untrained model's samples differ in reward."""
    statuses = ("passed", "failed", "failed", "invalid")
    monkeypatch.setattr(rloo, "judge", lambda task, ids: verdict(statuses[ids[0] % 4]))


@pytest.fixture
def written(monkeypatch):
    """A model that writes what one could judge: each prompt gets one of SAMPLES, by the step's seed."""

    def generate(model, prompts, max_new_tokens, temperature, seed):
        return [SAMPLES[i] for i in np.random.default_rng(seed).integers(0, len(SAMPLES), len(prompts))]

    monkeypatch.setattr(rloo, "generate", generate)


def train(base, out, threads=2, resume=False, **given):
    """Train for three groups of five short samples unless `given` says otherwise; return whether it came to its end."""
    settings = dict(
        groups=3, save_at=(), base=str(base), group_size=5, max_new_tokens=4, temperature=1.0, learning_rate=1e-3,
        replay_batch=2,
    )
    finished, _ = rloo.train(rloo.DEFAULTS | settings | given, out, threads, resume)
    return finished


def weights(folder):
    return load_file(folder / "model.safetensors")


def moments(out):
    """The running means of the gradient; after a first step, (1 - 0.9) times the gradient."""
    tensors = load_file(out / "last" / "optimizer.safetensors")
    return {name[2:]: m for name, m in tensors.items() if name.startswith("m.")}


def length(tensors):
    return np.sqrt(sum(np.sum(np.square(t, dtype=float)) for t in tensors.values()))


def make_model(seed=1):
    return randomize(MiniMoE(MICRO, np.random.default_rng(0), np.float64), np.random.default_rng(seed))


def make_group(monkeypatch, samples=SAMPLES, model=None):
    """The group of these samples, judged as they deserve."""
    monkeypatch.setattr(rloo, "generate", lambda model, prompts, *_: samples)
    settings = rloo.DEFAULTS | {"group_size": len(samples)}
    return rloo.sample_group(model, TASK, settings, 1)[0]


def log_p(model, sample, temperature):
    """log softmax(logits / temperature) (len(sample), V) of each place of one sample, read by itself."""
    logits, _ = model.forward(np.array([[*PROMPT, *sample]])[:, :-1])
    scores = logits[0, len(PROMPT) - 1 :] / temperature
    return scores - np.logaddexp.reduce(scores, axis=-1, keepdims=True)


def loss_by_hand(model, samples):
    """-mean over samples of advantage * log p(sample), sample by sample."""
    advantages = oracles.leave_one_out([OUTCOMES[tuple(sample)] for sample in samples])
    total = 0.0
    for sample, advantage in zip(samples, advantages):
        of_token = log_p(model, sample, TEMPERATURE)[np.arange(len(sample)), sample]
        total -= advantage * of_token.sum() / len(samples)
    return total


def gradients(model, group):
    """The gradient and loss of a group, the last block's scope."""
    ids, weights = rloo.policy_rows(group)
    with Workers(2, lambda: model.zero_grads(rloo.trainable("last-block", model))) as workers:
        grads, loss = sampled_gradients(model, ids, weights, workers, TEMPERATURE)
    return grads, loss


def test_the_gradient_of_a_step_is_that_of_its_loss(monkeypatch):
    model, rng, h = make_model(), np.random.default_rng(3), 1e-6
    grads, loss = gradients(model, make_group(monkeypatch))
    assert loss == pytest.approx(loss_by_hand(model, SAMPLES), rel=1e-12)
    tensors = {name: p for name, p in model.named_parameters() if p in grads}
    assert {name for name in tensors if not name.startswith(LAST)} == {"embedding.weight", "final_norm.weight"}
    for name, p in tensors.items():
        directions = [rng.standard_normal(p.data.shape)]
        if name == "embedding.weight":
            # read in the prompt alone; sampled and read; sampled last, never read; read inside a sample; never seen
            for token in (BOS, FIRST_BYTE + ord("r"), EOS, PAD, 200):
                directions.append(np.zeros(p.data.shape))
                directions[-1][token] = rng.standard_normal(MICRO.width)
        for which, direction in enumerate(directions):
            here, ends = p.data, []
            for sign in (1, -1):
                p.data = here + sign * h * direction
                ends.append(loss_by_hand(model, SAMPLES))
            p.data = here
            numeric, analytic = (ends[0] - ends[1]) / (2 * h), np.sum(grads[p] * direction)
            assert abs(analytic - numeric) < 1e-6 * abs(numeric) + 1e-8, (name, which, analytic, numeric)
            assert abs(numeric) > 1e-3 or name in UNMOVED or token == 200, (name, which)


def test_equal_samples_are_one_row_and_nothing_is_lost(monkeypatch):
    model = make_model()
    group = make_group(monkeypatch)
    assert group.completions == [tuple(s) for s in (WRONG, RIGHT, LONG, ODD, NONSENSE)]
    assert group.counts.tolist() == [1, 3, 1, 1, 1]
    assert group.rewards.tolist() == [OUTCOMES[completion] for completion in group.completions]
    each = oracles.leave_one_out([OUTCOMES[tuple(sample)] for sample in SAMPLES])
    np.testing.assert_allclose(group.advantages, [each[0], each[1], each[2], each[3], each[5]], rtol=1e-14)
    one_by_one = rloo.Group(
        TASK, [tuple(sample) for sample in SAMPLES], np.ones(len(SAMPLES), int), [], np.array([]), np.array(each)
    )
    (grads, loss), (expected, expected_loss) = gradients(model, group), gradients(model, one_by_one)
    assert loss == pytest.approx(expected_loss, rel=1e-12)
    for p, g in grads.items():                                            # valid still: each call had its own workers
        np.testing.assert_allclose(g, expected[p], rtol=0, atol=1e-12 * np.abs(expected[p]).max() + 1e-16)


def test_what_was_sampled_has_weight_by_its_place_and_nothing_else_has(monkeypatch):
    group = make_group(monkeypatch)
    ids, weights = rloo.policy_rows(group)
    T = len(PROMPT) + len(RIGHT) - 1                                      # the longest but for its last id
    assert ids.shape == (5, T + 1) and weights.shape == (5, T)
    each = oracles.leave_one_out([OUTCOMES[tuple(sample)] for sample in SAMPLES])
    counted = zip(group.completions, (1, 3, 1, 1, 1), np.delete(each, (4, 6)))
    for row, (completion, count, advantage) in enumerate(counted):
        padding = T + 1 - len(PROMPT) - len(completion)
        assert ids[row].tolist() == PROMPT + list(completion) + [PAD] * padding
        places = [False] * (len(PROMPT) - 1) + [True] * len(completion) + [False] * padding
        np.testing.assert_allclose(weights[row], np.where(places, count * advantage / len(SAMPLES), 0), rtol=1e-13)
    assert weights.any(axis=1).all()
    learned = weights != 0
    assert [EOS in row[learned[r].nonzero()[0] + 1] for r, row in enumerate(ids)] == [True, True, False, False, True]
    assert learned[3].sum() == len(ODD) and learned[3, len(PROMPT) + len(ODD) - 2]    # a PAD that was sampled last


@pytest.mark.parametrize("temperature", [0.35, 1.0])
def test_samples_come_from_the_distribution_that_scores_them(monkeypatch, temperature):
    monkeypatch.setattr(rloo, "judge", lambda task, ids: verdict("passed" if ids[0] % 2 else "failed"))
    model = make_model()
    model.embedding.weight.data *= 0.5                                    # flatter, so that no two tokens take it all
    G = 4000
    settings = rloo.DEFAULTS | {"group_size": G, "max_new_tokens": 2, "temperature": temperature}
    group, _ = rloo.sample_group(model, TASK, settings, 1)
    often = np.argsort(-group.counts)[:6]
    with Workers(1, model.zero_grads) as workers:
        for row in often:
            ids = np.array([[*PROMPT, *group.completions[row]]])
            weights = np.zeros((1, ids.shape[1] - 1))
            weights[0, len(PROMPT) - 1 :] = 1
            p = np.exp(-sampled_gradients(model, ids, weights, workers, temperature)[1])
            assert abs(group.counts[row] - G * p) < 4.5 * np.sqrt(G * p * (1 - p)), (group.counts[row], G * p)
    assert group.counts[often].min() > 20


def test_the_description_of_a_step_is_what_its_samples_say(monkeypatch):
    model, start = make_model(), make_model(seed=2)
    group = make_group(monkeypatch)
    log_base, _ = rloo.score(start, group, TEMPERATURE)
    described = rloo.describe(group, *rloo.score(model, group, TEMPERATURE), log_base)
    entropies, divergences = [], []
    for sample in SAMPLES:
        here, there = log_p(model, sample, TEMPERATURE), log_p(start, sample, TEMPERATURE)
        entropies += [-np.sum(np.exp(row) * row) for row in here]
        divergences.append(sum(here[i, token] - there[i, token] for i, token in enumerate(sample)))
    rewards = [OUTCOMES[tuple(sample)] for sample in SAMPLES]
    assert described == pytest.approx({
        "reward": np.mean(rewards), "passed": 3 / 7, "failed": 1 / 7, "invalid": 3 / 7, "truncated": 2 / 7,
        "distinct": 5, "zero_spread": 0, "advantage_largest": max(map(abs, oracles.leave_one_out(rewards))),
        "entropy": np.mean(entropies), "kl": np.mean(divergences),
    }, rel=1e-10)


def test_an_advantage_of_nothing_is_exactly_nothing(monkeypatch):
    monkeypatch.setattr(rloo, "judge", lambda task, ids: verdict("invalid"))
    group = make_group(monkeypatch)
    assert leave_one_out(np.full(7, -0.1)).any()                          # what rounding makes of it
    assert not group.advantages.any() and not rloo.policy_rows(group)[1].any()


@pytest.mark.parametrize("status", REWARDS)
def test_a_group_of_equal_rewards_teaches_nothing(base, tmp_path, monkeypatch, status):
    monkeypatch.setattr(rloo, "judge", lambda task, ids: verdict(status))
    train(base, tmp_path / "alone", replay=0.0, group_size=7)
    assert bits(base).items() <= bits(tmp_path / "alone" / "last").items()
    assert not any(m.any() for m in moments(tmp_path / "alone").values())
    for record in records(tmp_path / "alone"):
        assert record["zero_spread"] == 1 and record["advantage_largest"] == record["gradient_norm"] == 0
        assert record["reward"] == pytest.approx(REWARDS[status]) and record[status] == pytest.approx(1)
        assert "replay_loss" not in record

    train(base, tmp_path / "both", group_size=7)                          # the replay goes on by itself
    train(base, tmp_path / "replay", group_size=7, policy=0.0)
    assert bits(tmp_path / "both" / "last") == bits(tmp_path / "replay" / "last")
    assert records(tmp_path / "both") == records(tmp_path / "replay")
    assert moments(tmp_path / "both")["embedding.weight"].any()
    assert all(record["replay_loss"] > 1 for record in records(tmp_path / "both"))


def test_a_step_takes_the_gradient_of_its_group(base, tmp_path, monkeypatch, written):
    monkeypatch.setattr(rloo, "CLIP", 1e9)
    train(base, tmp_path, groups=1, group_size=9, temperature=TEMPERATURE, replay=0.0)
    (record,), taken, model = records(tmp_path), moments(tmp_path), MiniMoE.from_pretrained(base)
    task = sample_task("rl", np.random.default_rng([0, rloo.TASK_STREAM, 1]), TRAINED)
    group, _ = rloo.sample_group(model, task, rloo.DEFAULTS | {"group_size": 9}, 1)
    grads, _ = gradients(model, group)
    for name, p in model.named_parameters():
        if p in grads:                                                    # m = (1 - 0.9) g after a step
            np.testing.assert_allclose(taken[name], 0.1 * grads[p], rtol=1e-5, atol=1e-9, err_msg=name)
    log_p, entropy = rloo.score(model, group, TEMPERATURE)
    described = rloo.describe(group, log_p, entropy, log_p)
    assert {name: record[name] for name in described} == pytest.approx(described, rel=1e-5, abs=1e-5)
    assert lines(tmp_path / "rollouts.jsonl")[0]["task"] == task.name


def test_a_group_of_equal_rewards_spends_no_momentum(base, tmp_path, monkeypatch, varied):
    sample_group, judge = rloo.sample_group, rloo.judge

    def equal_in_2_and_3(model, task, settings, step):
        monkeypatch.setattr(rloo, "judge", (lambda task, ids: verdict("failed")) if step in (2, 3) else judge)
        return sample_group(model, task, settings, step)

    monkeypatch.setattr(rloo, "sample_group", equal_in_2_and_3)
    for groups in (1, 3, 4):
        train(base, tmp_path / str(groups), groups=groups, replay=0.0)
    assert bits(tmp_path / "3" / "last") == bits(tmp_path / "1" / "last") != bits(tmp_path / "4" / "last")
    assert [record["zero_spread"] for record in records(tmp_path / "4")] == [0, 1, 1, 0]
    train(base, tmp_path / "3", groups=4, replay=0.0, resume=True)        # more steps were taken than updates
    assert bits(tmp_path / "3" / "last") == bits(tmp_path / "4" / "last") and steps_done(tmp_path / "3") == 4
    assert records(tmp_path / "3") == records(tmp_path / "4")
    assert json.loads((tmp_path / "3" / "last" / "run.json").read_text())["updates"] == 2


def test_only_what_is_to_train_does(base, tmp_path, varied):
    before = weights(base)
    for scope in ("last-block", "all"):
        train(base, tmp_path / scope, groups=2, train_scope=scope)
        after = weights(tmp_path / scope / "last")
        moved = {name for name in after if (after[name] != before[name]).any()}
        last = {name for name in after if name.startswith((LAST, "final_norm.", "embedding."))}
        assert moved | UNMOVED == (last | UNMOVED if scope == "last-block" else set(after))
        assert moved <= (last if scope == "last-block" else set(after))


def test_the_full_model_trains_2190152_parameters():
    model = MiniMoE(PRESETS["full"], rng=None)
    learns = rloo.trainable("last-block", model)
    assert sum(p.data.size for name, p in model.named_parameters() if learns(name)) == 2_190_152
    assert sum(p.data.size for name, p in model.named_parameters() if rloo.trainable("all", model)(name)) == 25_730_592


@pytest.mark.parametrize("limit", [1e-3, 1e3])
def test_policy_and_replay_are_clipped_each_alone_and_added(base, tmp_path, monkeypatch, varied, limit):
    monkeypatch.setattr(rloo, "CLIP", limit)
    first, norms = {}, {}
    for name, given in {"policy": {"replay": 0.0}, "replay": {"policy": 0.0}, "both": {}}.items():
        train(base, tmp_path / name, groups=1, **given)
        first[name] = moments(tmp_path / name)
        (norms[name],) = records(tmp_path / name)
    assert norms["policy"]["gradient_norm"] == norms["both"]["gradient_norm"] > 1e-2
    assert norms["replay"]["replay_gradient_norm"] == norms["both"]["replay_gradient_norm"] > 1e-2
    assert norms["replay"]["gradient_norm"] == 0 and "replay_gradient_norm" not in norms["policy"]
    assert length(first["policy"]) == pytest.approx(0.1 * min(limit, norms["both"]["gradient_norm"]), rel=1e-4)
    assert length(first["replay"]) == pytest.approx(0.1 * min(limit, norms["both"]["replay_gradient_norm"]), rel=1e-4)
    for name, m in first["both"].items():
        expected = first["policy"][name] + first["replay"][name]
        np.testing.assert_allclose(m, expected, rtol=0, atol=1e-6 * np.abs(expected).max() + 1e-12, err_msg=name)


def test_the_weights_of_policy_and_replay_scale_their_gradients(base, tmp_path, varied):
    for name, given in {"one": {}, "other": {"policy": 0.5, "replay": 0.25}}.items():
        train(base, tmp_path / name, groups=1, **given)
    (one,), (other,) = records(tmp_path / "one"), records(tmp_path / "other")
    assert other["gradient_norm"] == pytest.approx(0.5 * one["gradient_norm"], rel=1e-4)
    assert other["replay_gradient_norm"] == pytest.approx(0.25 * one["replay_gradient_norm"], rel=1e-4)
    assert other["replay_loss"] == pytest.approx(one["replay_loss"], rel=1e-6)


def test_a_run_writes_what_it_promises(base, tmp_path, monkeypatch, capsys, written):
    out = tmp_path / "run"
    options = ["--groups", 4, "--group-size", 9, "--save-at", "2", "--replay-batch", 2, "--families", "double,square"]
    assert command(monkeypatch, "--base", base, "--out", out, *options, "--threads", 2) == 0
    assert sorted(path.name for path in out.iterdir()) == ["last", "metrics.jsonl", "rollouts.jsonl", "step-0002"]
    assert bits(out / "step-0002")["model.safetensors"] != bits(out / "last")["model.safetensors"]
    assert steps_done(out) == 4
    metrics, rollouts = lines(out / "metrics.jsonl"), lines(out / "rollouts.jsonl")
    assert [line["step"] for line in metrics] == [1, 2, 3, 4]
    assert [list(line.get("dev", [])) for line in metrics] == [[], list(FAMILIES), [], list(FAMILIES)]
    texts, tokens = {completion_text(sample): sample for sample in SAMPLES}, 0
    for line in metrics:
        assert set(line) - {"dev"} == {
            "step", "reward", "passed", "failed", "invalid", "truncated", "distinct", "zero_spread",
            "advantage_largest", "entropy", "kl", "gradient_norm", "replay_loss", "replay_gradient_norm",
            "sampling_seconds", "verifying_seconds", "updating_seconds", "family", "tokens", "seconds",
        }
        assert line["sampling_seconds"] > 0 and line["verifying_seconds"] > 0 and line["gradient_norm"] > 0
        assert line["sampling_seconds"] + line["verifying_seconds"] + line["updating_seconds"] <= line["seconds"]
        group = [row for row in rollouts if row["step"] == line["step"]]
        assert len({row["completion"] for row in group}) == len(group) == line["distinct"]
        assert sum(row["count"] for row in group) == 9
        assert len({row["task"] for row in group}) == 1 and line["family"] in ("double", "square")
        counts = Counter()
        for row in group:
            family, _, suffix = row["task"].rpartition("_")
            assert family == line["family"]
            task = make_task(family, int(suffix, 16))
            if row["reason"] == "did not end":
                counts["truncated"] += row["count"]
                assert row["status"] == "invalid" and texts[row["completion"]] in (LONG, ODD)
            else:
                assert row["status"] == verify(task, task.prompt + row["completion"]).status
            counts[row["status"]] += row["count"]
            tokens += row["count"] * len(texts[row["completion"]])
        for name in ("passed", "failed", "invalid", "truncated"):
            assert line[name] == pytest.approx(counts[name] / 9, abs=1e-12)
        assert line["passed"] + line["failed"] + line["invalid"] == pytest.approx(1, abs=1e-12)
        assert line["reward"] == pytest.approx(line["passed"] - 0.1 * line["invalid"], abs=1e-12)
        assert line["zero_spread"] == 0 < line["advantage_largest"] <= 1.1 + 1e-9 and line["tokens"] == tokens
    assert abs(metrics[0]["kl"]) < 1e-5 < max(abs(line["kl"]) for line in metrics[1:])
    assert abs(metrics[0]["entropy"] - np.log(MICRO.vocabulary)) < 0.2
    statuses = Counter(row["status"] for row in rollouts)
    assert statuses.keys() == REWARDS.keys()

    printed = capsys.readouterr()
    rows = [line.split() for line in printed.out.splitlines()]
    assert rows[0] == ["group", "solved", *FAMILIES] and [row[0] for row in rows[1:]] == ["0", "2", "4"]
    assert "5,308 parameters train" in printed.err and "group 4/4" in printed.err


def test_the_invalid_reward_is_the_users(base, tmp_path, written):
    train(base, tmp_path, group_size=9, invalid_reward=-2.0)
    for record in records(tmp_path):
        assert record["reward"] == pytest.approx(record["passed"] - 2 * record["invalid"])


def test_the_tasks_are_of_the_families_asked_for(base, tmp_path, varied):
    for families in (TRAINED, ("total",)):
        out = tmp_path / families[0]
        train(base, out, groups=8, replay=0.0, max_new_tokens=1, group_size=2, families=families)
        assert {record["family"] for record in records(out)} == set(families)
        assert len({row["task"] for row in lines(out / "rollouts.jsonl")}) == 8


def test_the_replayed_examples_are_of_the_families_asked_for(base, tmp_path, monkeypatch, varied):
    seen = set()

    def spy(rng, rows, length, split, families):
        assert split == "replay"
        ids, solution = pack(rng, rows, length, split, families)
        text = "".join(chr(token - FIRST_BYTE) for token in ids.flat if token >= FIRST_BYTE)
        seen.update(re.findall(r"def ([a-z_]+)_....\(", text))
        return ids, solution

    monkeypatch.setattr(rloo, "pack", spy)
    for families in (rloo.DEFAULTS["replay_families"], ("even", "reverse")):
        seen.clear()
        train(base, tmp_path / families[0], groups=6, replay_batch=4, replay_families=families)
        assert seen == set(families)


def test_a_prompt_is_read_once_and_equal_completions_are_judged_once(monkeypatch):
    read, judged, step = [], [], MiniMoE.step
    monkeypatch.setattr(MiniMoE, "step", lambda model, ids, *state: read.append(ids.shape) or step(model, ids, *state))
    monkeypatch.setattr(rloo, "judge", lambda task, ids: judged.append(ids) or verdict("failed"))
    model = make_model()
    model.embedding.weight.data *= 2                                      # few choices, so that samples agree
    group, _ = rloo.sample_group(model, TASK, rloo.DEFAULTS | {"group_size": 40, "max_new_tokens": 3}, 1)
    assert read[0] == (1, len(PROMPT)) and read[1:] and all(rows <= 40 and t == 1 for rows, t in read[1:])
    assert judged == group.completions and len(judged) == len(set(judged)) < 40 == group.counts.sum()


def test_the_seed_and_the_step_draw_the_group():
    model, settings = make_model(), rloo.DEFAULTS | {"group_size": 8, "max_new_tokens": 3, "temperature": 3.0}
    drawn = [
        tuple(rloo.sample_group(model, TASK, settings | {"seed": seed}, step)[0].completions)
        for seed, step in [(0, 1), (0, 2), (1, 1), (0, 1)]
    ]
    assert drawn[0] == drawn[3] and len(set(drawn)) == 3


def test_the_same_settings_give_the_same_bytes_on_any_number_of_threads(base, tmp_path, varied):
    for run, threads in enumerate((1, 1, 2, 4)):
        assert train(base, tmp_path / str(run), threads)
    for run in "123":
        assert bits(tmp_path / run / "last") == bits(tmp_path / "0" / "last")
        assert records(tmp_path / run) == records(tmp_path / "0")
        assert lines(tmp_path / run / "rollouts.jsonl") == lines(tmp_path / "0" / "rollouts.jsonl")


def test_evaluating_and_saving_more_often_change_nothing(base, tmp_path, monkeypatch, varied):
    train(base, tmp_path / "seldom")
    monkeypatch.setattr(rloo, "EVALUATE_EVERY", 1)
    monkeypatch.setattr(rloo, "SAVE_EVERY", 1)
    train(base, tmp_path / "often", save_at=(2,))
    assert all("dev" in line for line in lines(tmp_path / "often" / "metrics.jsonl"))
    assert bits(tmp_path / "often" / "last") == bits(tmp_path / "seldom" / "last")
    assert records(tmp_path / "often") == records(tmp_path / "seldom")


def test_a_run_in_parts_is_the_run_at_once(base, tmp_path, varied):
    once, parts = tmp_path / "once", tmp_path / "parts"
    train(base, once, groups=6)
    train(base, parts, groups=2)
    train(base, parts, groups=4, resume=True, threads=3)
    assert steps_done(parts) == 4
    train(base, parts, groups=6, resume=True)
    assert bits(parts / "last") == bits(once / "last") and steps_done(parts) == 6
    assert records(parts) == records(once) and len(records(once)) == 6
    assert (parts / "rollouts.jsonl").read_bytes() == (once / "rollouts.jsonl").read_bytes()
    assert json.loads((parts / "last" / "run.json").read_text())["dev"].keys() == {"0", "2", "4", "6"}


def test_a_run_that_died_after_its_last_save_redoes_those_groups(base, tmp_path, monkeypatch, varied):
    monkeypatch.setattr(rloo, "SAVE_EVERY", 2)
    train(base, tmp_path / "whole", groups=5)
    sample_group = rloo.sample_group

    def dies_in_group_4(model, task, settings, step):
        if step == 4:
            raise SystemError("killed")
        return sample_group(model, task, settings, step)

    died = tmp_path / "died"
    monkeypatch.setattr(rloo, "sample_group", dies_in_group_4)
    with pytest.raises(SystemError):
        train(base, died, groups=5)
    monkeypatch.setattr(rloo, "sample_group", sample_group)
    with open(died / "rollouts.jsonl", "a") as file:
        file.write('{"step": 4, "ta')                                     # a line that a kill cut short
    assert steps_done(died) == 2 and len(records(died)) == 3
    train(base, died, groups=5, resume=True)
    assert bits(died / "last") == bits(tmp_path / "whole" / "last")
    assert records(died) == records(tmp_path / "whole")
    assert (died / "rollouts.jsonl").read_bytes() == (tmp_path / "whole" / "rollouts.jsonl").read_bytes()


@pytest.mark.skipif(os.name == "nt", reason="no process can be sent Ctrl-C alone there")
def test_the_command_ends_on_ctrl_c_and_goes_on(base, tmp_path, monkeypatch):
    monkeypatch.setattr(rloo, "REPLAY_LENGTH", 129)                       # as in the other process
    out, whole = tmp_path / "run", tmp_path / "whole"
    options = ["--base", base, "--save-at", "", "--replay-batch", 1, "--group-size", 2, "--max-new-tokens", 2]
    process = commands.start(rloo, *options, "--groups", 10**6, "--out", out)
    printed, told = commands.interrupt(process, "group 1/")
    assert process.returncode == 130 and printed.startswith("group  solved") and "Traceback" not in told
    done = steps_done(out)
    assert f"stopped after group {done}; to go on: python -m minimoe.rloo --resume --out {out}" in told

    assert command(monkeypatch, "--resume", "--out", out, "--groups", done + 2) == 0
    assert command(monkeypatch, *options, "--groups", done + 2, "--out", whole) == 0
    assert bits(out / "last") == bits(whole / "last") and steps_done(out) == done + 2
    assert records(out) == records(whole)
    assert (out / "rollouts.jsonl").read_bytes() == (whole / "rollouts.jsonl").read_bytes()


@pytest.mark.parametrize("scope", ["last-block", "all"])
def test_the_reward_rises(base, tmp_path, monkeypatch, scope):
    monkeypatch.setattr(rloo, "judge", lambda task, ids: verdict("passed" if ids[0] < 130 else "failed"))
    given = dict(groups=12, group_size=32, max_new_tokens=1, learning_rate=0.06, replay=0.0)
    train(base, tmp_path, train_scope=scope, **given)
    rewards = [record["reward"] for record in records(tmp_path)]
    assert np.mean(rewards[:3]) < 0.65 and np.mean(rewards[-3:]) > 0.9


BAD = {
    "--base": ["nowhere"],
    "--policy": ["-1", "nan", "inf", "x", "1e+39"],
    "--groups": ["0", "-1", "1.5", "x", "nan"],
    "--group-size": ["0", "1", "-2", "x", "30000000"],
    "--temperature": ["0", "-1", "nan", "inf", "x"],
    "--learning-rate": ["0", "-0.001", "nan", "inf", "1e999"],
    "--families": ["", "increment,", "triple", "increment, double"],
    "--train-scope": ["none", ""],
    "--replay": ["-0.1", "nan", "inf", "x", "1e+308"],
    "--replay-families": ["", "reverse,", "triple"],
    "--replay-batch": ["0", "-1", "x", "100000"],
    "--invalid-reward": ["nan", "inf", "1e999", "x", "1e+20"],
    "--max-new-tokens": ["0", "-1", "x", "4294967295"],
    "--seed": ["-1", "1.5"],
    "--save-at": ["0", "5,,6", "3", "1,3"],
    "--threads": ["0", "-1", "x"],
}


@pytest.mark.parametrize("option", BAD)
def test_a_bad_value_is_refused_before_anything_is_made(base, tmp_path, monkeypatch, capsys, option):
    for value in BAD[option]:
        options = ["--base", base, "--groups", 2, "--out", tmp_path / "run"]
        line = refused(monkeypatch, capsys, *options, option, value)
        assert (option in line or option == "--base") and value.split(",")[-1].strip() in line
        assert list(tmp_path.iterdir()) == []


def test_the_default_base_is_told_how_to_make(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert "minimoe.pretrain" in refused(monkeypatch, capsys) and list(tmp_path.iterdir()) == []


def test_a_run_goes_on_from_its_own_base_alone_wherever_that_lies(base, tmp_path, monkeypatch, capsys, varied):
    out, moved, other = tmp_path / "run", tmp_path / "moved", tmp_path / "other"
    monkeypatch.chdir(base.parent)
    options = ["--groups", 1, "--group-size", 3, "--max-new-tokens", 2, "--replay-batch", 1, "--save-at", "", "--out", out]
    assert command(monkeypatch, "--base", base.name, *options) == 0
    monkeypatch.chdir(tmp_path)
    assert command(monkeypatch, "--resume", "--out", out) == 0
    shutil.copytree(base, moved)
    assert command(monkeypatch, "--resume", "--out", out, "--base", "moved") == 0
    moved.rename(tmp_path / ".moved.old")                                 # as a kill in the middle of a save leaves it
    assert command(monkeypatch, "--resume", "--out", out, "--base", "moved") == 0
    MiniMoE(MICRO, np.random.default_rng(1)).save_pretrained(other)
    capsys.readouterr()
    assert "--base" in refused(monkeypatch, capsys, "--resume", "--out", out, "--base", other)


@pytest.mark.parametrize(
    ("name", "value"),
    [("tokens", None), ("tokens", -1), ("dev", {"0": 3}), ("dev", None), ("families", []), ("replay_batch", 0),
     ("group_size", 2**70), ("train_scope", "x"), ("replay", -1), ("max_new_tokens", 0), ("temperature", 0)],
)
def test_a_damaged_run_is_refused_before_it_goes_on(base, tmp_path, monkeypatch, capsys, varied, name, value):
    out = tmp_path / "run"
    train(base, out, groups=1)
    path = out / "last" / "run.json"
    run = json.loads(path.read_text())
    (run if name in run else run["settings"])[name] = value
    path.write_text(json.dumps(run))
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    capsys.readouterr()
    refused(monkeypatch, capsys, "--resume", "--out", out, "--groups", 2)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_the_base_of_a_base_and_the_sizes_count_too(base, tmp_path, monkeypatch, capsys, varied):
    """A base may itself hold only what differs from another; and a file of sizes may be edited."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(base, "whole")
    Path("part").mkdir()
    config = json.loads(Path("whole/config.json").read_text())
    Path("part/config.json").write_text(json.dumps(config | {"base": "../whole"}))
    save_file({"final_norm.weight": np.full(config["width"], 2, np.float32)}, "part/model.safetensors")
    out = tmp_path / "run"
    train("part", out, groups=1)
    capsys.readouterr()
    more = "--resume", "--out", out, "--groups", 2
    (out / "last" / "config.json").write_text(json.dumps(config | {"sparse_top_k": 1}))
    assert "is not the model from which" in refused(monkeypatch, capsys, *more)
    (out / "last" / "config.json").write_text(json.dumps(config))
    shutil.rmtree("whole")
    MiniMoE(MICRO, np.random.default_rng(1)).save_pretrained("whole")
    assert "is not the model from which" in refused(monkeypatch, capsys, *more)
    shutil.rmtree("whole")
    shutil.copytree(base, "whole")
    assert command(monkeypatch, *more) == 0


def test_nothing_to_learn_from_is_refused(base, tmp_path, monkeypatch, capsys):
    line = refused(monkeypatch, capsys, "--base", base, "--out", tmp_path / "run", "--policy", 0, "--replay", 0)
    assert "--policy" in line and "--replay" in line and list(tmp_path.iterdir()) == []


def test_a_folder_with_anything_in_it_is_left_alone(base, tmp_path, monkeypatch, capsys):
    (tmp_path / "thesis.txt").write_text("all I have")
    line = refused(monkeypatch, capsys, "--base", base, "--out", tmp_path)
    assert str(tmp_path) in line and [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_resume_does_not_change_the_run(base, tmp_path, monkeypatch, capsys, varied):
    out = tmp_path / "run"
    train(base, out)
    capsys.readouterr()
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    for option, value in {
        "--policy": "2", "--group-size": "6", "--temperature": "0.5", "--families": "total",
        "--train-scope": "all", "--replay": "0", "--replay-batch": "3", "--invalid-reward": "-1", "--seed": "1",
        "--max-new-tokens": "5", "--groups": "2", "--save-at": "4",
    }.items():
        line = refused(monkeypatch, capsys, "--resume", "--out", out, option, value)
        assert option in line and value in line
    agreeing = ["--base", base, "--families", ",".join(TRAINED), "--group-size", 5, "--learning-rate", 1e-4]
    assert command(monkeypatch, "--resume", "--out", out, *agreeing) == 0    # nothing is left to do
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_a_run_of_another_command_is_not_resumed(base, tmp_path, monkeypatch, capsys, varied):
    monkeypatch.setattr(pretrain, "DEV_TASKS", 1)
    settings = pretrain.DEFAULTS["micro"] | pretrain.COMMON | {"preset": "micro", "steps": 1}
    pretrain.train(settings, tmp_path / "pretrained", 2, False)
    train(base, tmp_path / "improved", groups=1)
    capsys.readouterr()
    for module, out in (rloo, tmp_path / "pretrained"), (pretrain, tmp_path / "improved"):
        before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
        line = commands.refused(module, monkeypatch, capsys, "--resume", "--out", out)
        assert str(out) in line and "run" in line
        assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    line = refused(monkeypatch, capsys, "--resume", "--out", tmp_path / "none")
    assert str(tmp_path / "none") in line and not (tmp_path / "none").exists()


def test_a_gradient_that_is_not_a_number_stops_the_run_before_any_weight_moves(base, tmp_path, monkeypatch, varied):
    monkeypatch.setattr(rloo, "SAVE_EVERY", 1)
    sampled, calls = rloo.sampled_gradients, []

    def poisoned(model, *arguments):
        grads, *rest = sampled(model, *arguments)
        calls.append(model)
        if len(calls) == 4:                                               # the replay of the second group
            grads[model.final_norm.weight][0] = np.nan
        return grads, *rest

    monkeypatch.setattr(rloo, "sampled_gradients", poisoned)
    with pytest.raises(InputError, match="final_norm.weight"):
        train(base, tmp_path / "run")
    assert len(calls) == 4 and len(records(tmp_path / "run")) == 1 and steps_done(tmp_path / "run") == 1
    saved = weights(tmp_path / "run" / "last")
    for name, p in calls[-1].named_parameters():
        np.testing.assert_array_equal(p.data, saved[name], err_msg=name)


def test_a_checkpoint_of_a_run_can_be_improved_further(base, tmp_path, varied):
    train(base, tmp_path / "first", groups=1)
    train(tmp_path / "first" / "last", tmp_path / "second", groups=1)
    shutil.rmtree(tmp_path / "first")
    assert MiniMoE.from_pretrained(tmp_path / "second" / "last") and steps_done(tmp_path / "second") == 1
