"""What must hold a million times: verdicts on hostile sources, agreement with Python, generations, steps of training."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from random import Random
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np

from minimoe import rloo
from minimoe.coding.tasks import FAMILIES
from minimoe.coding.verifier import MAX_BRACKETS
from minimoe.config import PRESETS
from minimoe.gradcheck import randomize
from minimoe.generate import generate
from minimoe.model import MiniMoE
from minimoe.tokenizer import EOS, completion_text
from tests.test_verifier import INPUTS, agrees, harmless, hostile_source, program

SLOWEST = 0.1     # seconds a verdict may take
GROWTH = 2**24    # bytes that a process may grow by, once warm


def verifier(tally: Any, count: int = 1_000_000, seed: int = 0) -> None:
    """Judge hostile sources: no escape, nothing printed, no exception, none slow, no growth of memory."""
    rng = Random(seed)
    with silent() as printed, steady(tally, "memory", count):
        for i in range(count):
            family, source = rng.choice(list(FAMILIES)), hostile_source(rng)
            try:
                begun = time.perf_counter()
                status = harmless(family, source)
                seconds = time.perf_counter() - begun
                if seconds > SLOWEST:                                     # this machine may have done something else
                    begun = time.perf_counter()
                    harmless(family, source)
                    seconds = min(seconds, time.perf_counter() - begun)
                tally.record(status, repr(source), f"took {seconds:.2f} s" if seconds > SLOWEST else "")
            except BaseException as error:                                # an exit, too, is an escape
                if isinstance(error, KeyboardInterrupt):
                    raise
                tally.record("raised", repr(source), repr(error))
            if i % 1000 == 0:
                tally.steady(i)
    tally.record("printed", "", repr(printed.getvalue()) if printed.getvalue() else "")


def agreement(tally: Any, count: int = 200_000, seed: int = 0) -> None:
    """Run allowed programs here and in Python: the same value, type or exception."""
    rng = Random(seed)
    while tally.tried.total() < count:
        of = rng.choice(list(INPUTS))
        expression = program(rng, rng.choice(list(INPUTS)), of)
        if expression.count("(") + expression.count("[") < MAX_BRACKETS:
            for x in INPUTS[of]:
                try:
                    tally.record(agrees(expression, x), expression)
                except AssertionError as error:
                    tally.record("differs", expression, str(error)[:200])


def generations(tally: Any, count: int = 10_000, seed: int = 0) -> None:
    """Continue random prompts, short and long, at any temperature, of untrained models."""
    rng = np.random.default_rng(seed)
    model = randomize(MiniMoE(PRESETS["nano"], rng), rng)
    for _, parameter in model.named_parameters():
        parameter.data = parameter.data.astype(np.float32)
    context, V = model.config.context, model.config.vocabulary
    while tally.tried.total() < count:
        prompts = [rng.integers(0, V, rng.integers(1, context + 1)).tolist() for _ in range(rng.integers(1, 17))]
        most, temperature = int(rng.integers(1, 40)), float(rng.choice([0, 1e-6, 0.35, 1, 1e6]))
        problem = ""
        try:
            for prompt, ids in zip(prompts, generate(model, prompts, most, temperature, int(rng.integers(2**32))), strict=True):
                completion_text(ids)
                if len(ids) != min(most, context - len(prompt)) and ids[-1] != EOS:
                    problem = f"{len(ids)} ids after {len(prompt)}, of at most {most}"
        except Exception as error:
            problem = repr(error)
        for _ in prompts:
            tally.record(f"temperature {temperature:g}", f"{len(prompts)} prompts", problem)


def load(tally: Any, count: int = 3000, seed: int = 0) -> None:
    """Train by RLOO at nano size for thousands of groups, without growth of memory."""
    with TemporaryDirectory() as folder:
        rng = np.random.default_rng(seed)
        MiniMoE(PRESETS["nano"], rng).save_pretrained(f"{folder}/base")
        settings = rloo.DEFAULTS | dict(base=f"{folder}/base", groups=count, save_at=(), seed=seed)
        describe = rloo.describe

        def watched(*arguments: Any) -> Any:
            tally.record("group", "")
            tally.steady(tally.tried["group"])
            return describe(*arguments)

        with steady(tally, "memory", count), patch.object(rloo, "describe", watched), silent():
            rloo.train(settings, rloo.Path(folder, "run"), os.cpu_count() or 1, resume=False)


@contextmanager
def steady(tally: Any, kind: str, count: int) -> Iterator[None]:
    """Let `tally.steady(i)` look at the memory of this process, which may not grow after a tenth of the cases."""
    seen: list[int] = []
    tally.steady = lambda i: seen.append(resident()) if i >= count / 10 else None
    yield
    grown = max(seen) - seen[0] if seen else 0
    tally.record(kind, f"{grown / 2**20:.1f} MiB more", "it grows" if grown > GROWTH else "")


def resident() -> int:
    """Return the bytes of memory that this process has now, 0 where the system does not say."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


@contextmanager
def silent() -> Iterator[StringIO]:
    """Catch what is printed."""
    with patch("sys.stdout", StringIO()) as out:
        yield out
