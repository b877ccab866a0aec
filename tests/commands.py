"""Run the commands, and read what a run of training wrote."""

import json
import signal
import subprocess
import sys
from pathlib import Path

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
