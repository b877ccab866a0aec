"""Runs of training that are killed at any moment, and gone on with."""

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from minimoe.files import recover
from tests.writes import differences

ROOT = Path(__file__).parents[1]
PRETRAIN = ["--steps", "45", "--save-at", "10,30", "--batch-size", "4", "--sequence-length", "32"]
RLOO = ["--groups", "26", "--save-at", "6,18", "--group-size", "4", "--max-new-tokens", "6", "--replay-batch", "1"]
WAYS = "any moment", "a save", "a change to the disk", "Ctrl-C thrice"
POLL = 2e-4    # seconds


def kills(tally: Any, count: int = 40, seed: int = 0, preset: str = "nano") -> None:
    """Kill pretrain and rloo at any moment and resume them, until each is done: the same bits as without."""
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        base = f"{folder}/minimoe.pretrain"
        commands = {
            "minimoe.pretrain": ["--preset", preset, *PRETRAIN], "minimoe.rloo": ["--base", f"{base}/last", *RLOO],
        }
        seconds = {}
        for module, options in commands.items():
            begun = time.monotonic()
            subprocess.run(command(module, *options, "--out", f"{folder}/{module}"), cwd=ROOT, capture_output=True, check=True)
            seconds[module] = time.monotonic() - begun
        killed = run = 0
        while killed < count:
            module = list(commands)[run % 2]
            out, whole = Path(folder, f"run-{run}"), Path(folder, module)
            most = min(max(count // 4, 1), count - killed)                 # two runs of each command, or more
            got = killed_run(module, commands[module], out, whole, most, seconds[module], rng, tally)
            killed, run = killed + got, run + 1


def killed_run(
    module: str, options: list[str], out: Path, whole: Path, most: int, seconds: float, rng: np.random.Generator, tally: Any
) -> int:
    """Kill a run up to `most` times before it ends; record each kill, and return how many there were."""
    ways: list[str] = []
    while True:
        way = WAYS[rng.integers(len(WAYS))] if len(ways) < most else None
        recover(out / "last")
        arguments = ["--resume", "--out", str(out)] if (out / "last").exists() else [*options, "--out", str(out)]
        code, told = once(module, arguments, way, out, seconds, rng)
        if code == 0:
            break
        python_starts = code == -signal.SIGINT and "run(main)" not in told    # Ctrl-C is Python's own till our first line
        problem = "" if way and (code in (-signal.SIGKILL, 130) or python_starts) else f"exit code {code}, told {told[-300:]!r}"
        if code == 130 and "Traceback" in told:
            problem = told[-300:]
        ways.append(way or "nothing")
        if problem or way is None:
            tally.record(f"{module}: {ways[-1]}", out.name, problem)
            return len(ways)
    problem = differences(out, whole)                                     # one of the kills did it, if any
    for way in ways:
        tally.record(f"{module}: {way}", out.name, problem)
    return len(ways)


def once(module: str, arguments: list[str], way: str | None, out: Path, seconds: float, rng: np.random.Generator) -> tuple[int, str]:
    """Run the command once, killed in this way unless it ends before; return its exit code and what it told."""
    start = command(module, *arguments)
    if way == "a change to the disk":
        start = [sys.executable, "-m", "tests.writes", str(rng.integers(1, 80)), module, *arguments]
    process = subprocess.Popen(start, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    delay, tear = rng.uniform(0, seconds), rng.uniform(0, 0.02)
    if way == "any moment":
        wait(process, delay)
        process.kill()
    elif way == "a save":
        wait(process, rng.uniform(0, seconds / 2))
        while process.poll() is None and not any(out.glob(".*.tmp")):
            time.sleep(POLL)
        time.sleep(tear)
        process.kill()
    elif way == "Ctrl-C thrice":
        wait(process, delay)
        for _ in range(3):
            process.send_signal(signal.SIGINT)
            time.sleep(tear / 4)
    _, told = process.communicate()
    return process.returncode, told


def wait(process: subprocess.Popen, seconds: float) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        pass


def command(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", module, *arguments, "--threads", "1"]
