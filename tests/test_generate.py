import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from minimoe.config import PRESETS
from minimoe.errors import InputError
from minimoe.generate import generate, main, sample
from minimoe.gradcheck import randomize
from minimoe.layers.layer import State
from minimoe.model import MiniMoE
from minimoe.tokenizer import BOS, EOS, VOCABULARY, completion_text, encode

CONTEXT = 24
PROMPTS = [[9], [7, 8, 9, 10, 11, 12, 13, 14], [BOS, 50, 60], [30, 31, 32], [9, 8]]


@pytest.fixture(scope="module")
def model():
    config = replace(PRESETS["micro"], context=CONTEXT)
    return randomize(MiniMoE(config, np.random.default_rng(0), np.float64), np.random.default_rng(1))


def greedy_by_forward(model, prompt, max_new_tokens):
    """The whole prefix is read anew for every token."""
    ids = list(prompt)
    while len(ids) < min(len(prompt) + max_new_tokens, model.config.context):
        logits, _ = model.forward(np.array([ids]))
        ids.append(int(logits[0, -1].argmax()))
        if ids[-1] == EOS:
            break
    return ids[len(prompt) :]


@dataclass(frozen=True)
class Said(State):
    last: np.ndarray  # (B,) the id that the model gave


class Countdown:
    """Stands in for a model: the next id is one less. It refuses an id that it did not give to that row."""

    config = SimpleNamespace(context=CONTEXT, vocabulary=260)

    def __init__(self):
        self.calls = []

    def step(self, ids, state=None):
        self.calls.append(ids.shape)
        if state is not None:
            np.testing.assert_array_equal(ids[:, 0], state[0].last)
        following = ids - 1
        return np.eye(VOCABULARY)[following], [Said(following[:, -1])]


def test_greedy_decoding_is_the_argmax_over_the_whole_prefix(model):
    completions = generate(model, PROMPTS, max_new_tokens=15)
    assert completions == [greedy_by_forward(model, prompt, 15) for prompt in PROMPTS]
    assert len({tuple(completion) for completion in completions}) == len(PROMPTS)     # or it would show little


def test_prompts_together_are_each_alone(model):
    together = generate(model, PROMPTS, max_new_tokens=12)
    assert together == [generate(model, prompt, max_new_tokens=12)[0] for prompt in PROMPTS]
    assert together == generate(model, [np.array(prompt) for prompt in PROMPTS], max_new_tokens=12)


def test_what_is_equal_so_far_is_read_once_and_prompts_of_one_length_together(model, monkeypatch):
    shapes, step = [], model.step
    monkeypatch.setattr(model, "step", lambda ids, state=None: (shapes.append(ids.shape), step(ids, state))[1])
    a, b = [5, 6, 7], [8, 9, 10]
    completions = generate(model, [a, a, b, a, a, a, [4] * 6], max_new_tokens=3)
    assert shapes[:2] == [(2, 3), (1, 6)] and shapes[2:] == [(3, 1)] * 2
    monkeypatch.undo()
    assert completions == [greedy_by_forward(model, prompt, 3) for prompt in (a, a, b, a, a, a, [4] * 6)]


def test_draws_that_part_go_on_each_from_its_own_past(model, monkeypatch):
    """The draws of ten rows, and what each saw, are those of ten rows that are never taken together."""
    rng, noise = np.random.default_rng(0), []
    monkeypatch.setattr(np.random, "default_rng", lambda seed: rng)
    gumbel = np.random.default_rng(1).gumbel(size=(8, 10, VOCABULARY))
    prompts, temperature = [[5, 6, 7]] * 10, 0.8
    rng = type("Drawn", (), {"gumbel": lambda self, size: noise.append(size) or gumbel[len(noise) - 1]})()
    together = generate(model, prompts, 8, temperature)
    alone = []
    for i in range(10):
        ids = [5, 6, 7]
        for step in range(8):
            logits, _ = model.forward(np.array([ids]))
            ids.append(int((logits[0, -1].astype(np.float64) / temperature + gumbel[step, i]).argmax()))
        alone.append(ids[3:])
    assert together == alone and noise == [(10, VOCABULARY)] * 8
    assert 1 < len({ids[0] for ids in alone}) < 10                        # some part at once, some later


def test_draws_of_one_prompt_differ_and_the_seed_repeats_them(model):
    prompts = [[5, 6, 7]] * 6
    first = generate(model, prompts, 8, temperature=2.0, seed=3)
    assert len(set(map(tuple, first))) == 6
    assert first == generate(model, prompts, 8, temperature=2.0, seed=3)
    assert first != generate(model, prompts, 8, temperature=2.0, seed=4)
    assert first != generate(model, prompts, 8, temperature=2.0, seed=[3, 1])


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 2.0])
def test_draws_follow_the_softmax_of_logits_over_temperature(temperature):
    logits, rows = np.array([1.0, -0.5, 0.2, 2.0, 0.0, -3.0]), 40_000
    drawn = sample(np.tile(logits, (rows, 1)), temperature, np.random.default_rng(5))
    p = np.exp(logits / temperature)
    expected = rows * p / p.sum()
    chi_square = np.sum((np.bincount(drawn, minlength=6) - expected) ** 2 / expected)
    assert chi_square < 20.5                                              # 5 degrees of freedom: 1 seed in 1,000 fails


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_temperature_of_zero_or_near_it_takes_the_largest(dtype):
    logits = np.random.default_rng(0).permuted(np.tile(np.arange(-300, 300, 10), (200, 1)), axis=1).astype(dtype)
    rng = np.random.default_rng(0)
    for temperature in 0, 1e-4, 1e-40:
        np.testing.assert_array_equal(sample(logits, temperature, rng), logits.argmax(axis=1))


def test_temperature_zero_draws_nothing_and_a_tie_goes_to_the_lower_id():
    assert sample(np.array([[1.0, 3.0, 3.0], [0.0, 0.0, 0.0]]), 0, None).tolist() == [1, 0]


def test_eos_ends_a_row_and_the_others_go_on():
    countdown = Countdown()
    prompts = [[EOS + 3], [200, EOS + 1], [150], [EOS + 3]]
    completions = generate(countdown, prompts, max_new_tokens=6)
    assert completions == [[EOS + 2, EOS + 1, EOS], [EOS], list(range(149, 143, -1)), [EOS + 2, EOS + 1, EOS]]
    # two lengths, each read once, the equal prompts as one; then what still runs: two rows twice, one thrice
    assert countdown.calls == [(2, 1), (1, 2), (2, 1), (2, 1), (1, 1), (1, 1), (1, 1)]


@pytest.mark.parametrize("max_new_tokens", [0, 1, 5, 100])
@pytest.mark.parametrize("length", [1, CONTEXT - 1, CONTEXT])
def test_nothing_is_added_beyond_the_context_or_what_is_asked(length, max_new_tokens):
    countdown = Countdown()
    (completion,) = generate(countdown, [100] * length, max_new_tokens)
    assert completion == list(range(99, 99 - min(max_new_tokens, CONTEXT - length), -1))
    assert sum(t for _, t in countdown.calls) <= CONTEXT - 1             # the last id is not read


def test_prompts_to_the_edge_of_the_context(model):
    prompts = [[9], [9] * (CONTEXT - 1), [9] * CONTEXT]
    completions = generate(model, prompts, max_new_tokens=1000)
    assert completions == [greedy_by_forward(model, prompt, 1000) for prompt in prompts]
    assert [len(completion) for completion in completions[1:]] == [1, 0]


@pytest.mark.parametrize("bad", [[], [9] * (CONTEXT + 1)])
def test_a_prompt_that_is_empty_or_too_long_is_refused(bad):
    countdown = Countdown()
    with pytest.raises(InputError, match=f"has {len(bad)} tokens; it needs 1 to {CONTEXT}"):
        generate(countdown, [[9, 9], bad])
    assert countdown.calls == []


def test_no_prompts_give_no_completions():
    assert generate(Countdown(), []) == []


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "step-0001"
    config = replace(PRESETS["micro"], context=CONTEXT)
    randomize(MiniMoE(config, np.random.default_rng(0)), np.random.default_rng(2)).save_pretrained(folder)
    return folder


def command(*arguments):
    """`python -m minimoe.generate`, whose output is text in UTF-8 everywhere."""
    return subprocess.run(
        [sys.executable, "-m", "minimoe.generate", *arguments], capture_output=True, encoding="utf-8",
        cwd=Path(__file__).parents[1], env=os.environ | {"PYTHONIOENCODING": "utf-8"},
    )


def test_the_command_prints_each_prompt_with_its_completion(checkpoint):
    model = MiniMoE.from_pretrained(checkpoint)
    done = command("--checkpoint", str(checkpoint), "def f(x):\\n", "é", "--max-new-tokens", "7")
    assert (done.returncode, done.stderr) == (0, "")
    prompts = ["def f(x):\n", "é"]
    completions = generate(model, [[BOS] + encode(prompt) for prompt in prompts], 7)
    expected = "".join(f"{prompt}{completion_text(ids)}\n" for prompt, ids in zip(prompts, completions))
    assert done.stdout == expected.replace("\r\n", "\n").replace("\r", "\n")    # as text is read


def test_the_command_draws_by_temperature_and_seed(checkpoint):
    model = MiniMoE.from_pretrained(checkpoint)
    done = command("--checkpoint", str(checkpoint), "abc", "--temperature", "1.5", "--seed", "11", "--max-new-tokens", "5")
    expected = completion_text(generate(model, [BOS] + encode("abc"), 5, 1.5, 11)[0])
    assert done.stdout == f"abc{expected}\n".replace("\r\n", "\n").replace("\r", "\n")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--checkpoint", "{missing}", "x"], "{missing}"),
        (["--checkpoint", "{file}", "x"], "{file}"),
        (["--checkpoint", "", "x"], "config.json"),                       # not the default one
        (["--checkpoint", "{checkpoint}", ""], "a prompt is empty"),
        (["--checkpoint", "{checkpoint}", "x", "y" * CONTEXT], f"has {CONTEXT + 1} tokens; it needs 1 to {CONTEXT}"),
        pytest.param(
            ["--checkpoint", "{checkpoint}", b"caf\xe9"], "lone surrogate",
            marks=pytest.mark.skipif(os.name == "nt", reason="an argument is text there"),
        ),
        (["--checkpoint", "{checkpoint}", "x", "--temperature", "-1"], "--temperature"),
        (["--checkpoint", "{checkpoint}", "x", "--temperature", "nan"], "--temperature"),
        (["--checkpoint", "{checkpoint}", "x", "--max-new-tokens", "0"], "--max-new-tokens"),
        (["--checkpoint", "{checkpoint}", "x", "--seed", "-1"], "--seed"),
        (["--checkpoint", "{checkpoint}"], "PROMPT"),
        (["--checkpoint"], "expected one argument"),
    ],
)
def test_the_command_refuses_bad_input_in_one_line(checkpoint, arguments, says):
    places = {"missing": checkpoint.parent / "none", "file": checkpoint / "model.safetensors", "checkpoint": checkpoint}
    done = command(*(a if isinstance(a, bytes) else a.format(**places) for a in arguments))
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("minimoe.generate: ") and says.format(**places) in done.stderr
    assert done.stderr.count("\n") == 1 and done.stderr.endswith("\n")


def test_the_command_takes_what_was_trained_before_what_was_released(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    models = {}
    for name, seed in [("checkpoints/released/rloo", 1), ("checkpoints/rloo/last", 2)]:
        models[name] = randomize(MiniMoE(PRESETS["micro"], np.random.default_rng(seed)), np.random.default_rng(seed))
        models[name].save_pretrained(name)
        monkeypatch.setattr(sys, "argv", ["minimoe.generate", "abc"])
        main()
        told = "abc" + completion_text(generate(models[name], [BOS] + encode("abc"))[0]) + "\n"
        assert capsys.readouterr().out == told
    os.rename("checkpoints/rloo/last", "checkpoints/rloo/.last.old")      # as a kill in the middle of a save leaves it
    main()
    assert capsys.readouterr().out == told


def test_the_command_says_where_it_looked_for_a_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["minimoe.generate", "abc"])
    with pytest.raises(InputError, match="no checkpoints/rloo/last and no checkpoints/released/rloo here"):
        main()
