"""Run the commands, and read what a run of training wrote."""

import io
import json
import signal
import subprocess
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

import pytest

from minimoe import cli


def command(module, monkeypatch, *arguments):
    """Run the command in this process; return its exit code."""
    monkeypatch.setattr(sys, "argv", [module.__name__, *map(str, arguments)])
    with pytest.raises(SystemExit) as left:
        cli.run(module.main)
    return left.value.code or 0


def refused(module, monkeypatch, capsys, *arguments):
    """The one line on stderr with which the command ends."""
    assert command(module, monkeypatch, *arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1 and printed.err.endswith("\n")
    return printed.err


def call(module, *arguments):
    """Run the command in this process; return its exit code, what it printed, and what it told: a traceback if it raised."""
    printed, told = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace") for _ in range(2))
    with mock.patch.object(sys, "argv", [module.__name__, *map(str, arguments)]), redirect_stdout(printed), redirect_stderr(told):
        try:
            cli.run(module.main)
        except SystemExit as left:
            code = left.code or 0
        except Exception:
            traceback.print_exc()
            code = 1
    texts = []
    for stream in printed, told:
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())
    return code, *texts


def refusal(outcome, *names):
    """What is wrong with the outcome of a `call` that had to be refused in one line with all of `names` in it."""
    code, printed, told = outcome
    if code != 2 or printed or told.count("\n") != 1:
        return f"exit code {code}, printed {printed[-200:]!r}, told {told[-200:]!r}"
    missing = [name for name in names if name not in told]
    return f"{missing} not in {told!r}" if missing or not told[:-1].isprintable() else ""


def start(module, *arguments):
    """The command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", module.__name__, *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1],
    )


def interrupt(process, after):
    """Press Ctrl-C once the command has told of `after`; return what it printed, and what it tells from then on."""
    seen = ""
    while after not in seen:
        line = process.stderr.readline()
        assert line, seen
        seen += line
    process.send_signal(signal.SIGINT)
    return process.communicate(timeout=60)


def finish(module, *arguments):
    process = start(module, *arguments)
    process.communicate()
    assert process.returncode == 0


def bits(folder):
    """The bytes of all weights, and of all moments where there are any."""
    return {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}


def lines(path):
    """The records of a JSON Lines file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def records(out):
    """metrics.jsonl without what may differ from run to run."""
    return [
        {key: value for key, value in line.items() if key != "dev" and not key.endswith("seconds")}
        for line in lines(out / "metrics.jsonl")
    ]


def steps_done(out):
    return json.loads((out / "last" / "run.json").read_text())["step"]
