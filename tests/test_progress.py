import io
import json
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minimoe.training import progress as module
from minimoe.training.progress import Progress, truncate


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    """Keeps what is written, and shows what a terminal that wide would: carriage returns overwrite."""

    def isatty(self):
        return True

    def screen(self):
        rows, row, column = [], "", 0
        for character in self.getvalue():
            if character == "\n":
                rows, row, column = [*rows, row.rstrip()], "", 0
            elif character == "\r":
                column = 0
            else:
                row, column = row[:column] + character + row[column + 1 :], column + 1
        return [*rows, row.rstrip()]


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "perf_counter", clock)
    return clock


def lines(path):
    return [json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()]


def test_metrics_are_exact_and_strict_json(tmp_path, clock):
    path = tmp_path / "run" / "metrics.jsonl"
    with Progress(path, total=3, stream=io.StringIO()) as progress:
        clock.now += 1.5
        progress.update(1, 4096, loss=0.1 + 0.2, lr=np.float32(0.1), load=np.arange(3), counts=[np.int64(7)])
        with progress.paused():
            clock.now += 60
        clock.now += 2
        progress.update(2, 8192, loss=float("nan"), load=np.array([np.inf, 0.5]))
        assert len(lines(path)) == 2, "each line is there as soon as its step is done"
    first = {"step": 1, "loss": 0.30000000000000004, "lr": float(np.float32(0.1)), "load": [0, 1, 2], "counts": [7]}
    assert lines(path) == [
        first | {"tokens": 4096, "seconds": 1.5},
        {"step": 2, "loss": None, "load": [None, 0.5], "tokens": 8192, "seconds": 2.0},
    ]


def test_a_resumed_run_goes_on_where_it_resumes_and_a_new_one_begins_anew(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for start, steps in [(0, [1, 2, 3]), (2, [3, 4])]:
        with Progress(path, total=4, start=start, stream=io.StringIO()) as progress:
            for step in steps:
                progress.update(step, step, run=start)
    assert [(line["step"], line["run"]) for line in lines(path)] == [(1, 0), (2, 0), (3, 2), (4, 2)]
    Progress(path, total=4, stream=io.StringIO()).close()
    assert lines(path) == []


def test_truncate_keeps_whole_lines_up_to_the_step(tmp_path):
    path = tmp_path / "metrics.jsonl"
    truncate(path, 3)
    assert not path.exists()
    whole = [json.dumps({"step": step, "loss": 0.1 * step}) + "\n" for step in (1, 2, 3)]
    for cut in range(len(whole[2])):
        path.write_text("".join(whole)[: -1 - cut])
        truncate(path, 5)
        assert path.read_text() == "".join(whole if cut == 0 else whole[:2])
    path.write_text("".join(whole) + "[" * 100_000 + "\n")                # which JSON's reader cannot hold
    truncate(path, 2)
    assert path.read_text() == "".join(whole[:2])
    assert [entry.name for entry in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_truncate_fails_whole(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n')

    def fail(*arguments):
        raise OSError(28, "No space left on device")

    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch, pytest.raises(OSError):
            patch.setattr(os, name, fail)
            truncate(path, 1)
        assert path.read_text() == '{"step": 1}\n{"step": 2}\n'


def test_without_a_terminal_every_tenth_step_is_a_line(clock):
    stream = io.StringIO()
    with Progress(None, total=25, start=3, stream=stream) as progress:
        for step in range(4, 26):
            clock.now += 2
            progress.update(step, 100 * step, loss=4.0 / step, load=[1, 2])
            if step == 11:
                progress.message("saved")
    assert stream.getvalue().splitlines() == [
        "step 4/25  loss 1",
        "step 10/25  loss 0.4  50 tokens/s  0:00:30 left",
        "saved",
        "step 20/25  loss 0.2  50 tokens/s  0:00:10 left",
        "step 25/25  loss 0.16  50 tokens/s  0:00:00 left",
    ]


def test_speed_is_that_of_the_last_20_steps_and_of_no_pause(clock):
    stream = io.StringIO()
    with Progress(None, total=100, stream=stream) as progress:
        for step in range(1, 51):
            clock.now += 9 if step <= 31 else 1
            with progress.paused():
                clock.now += 1000
            progress.update(step, 100 * step)
    assert stream.getvalue().splitlines()[-1] == "step 50/100  71 tokens/s  0:01:10 left"


def test_the_live_line_is_redrawn_messages_stay_above_it_and_it_is_ended(clock):
    stream = Terminal()
    with Progress(None, total=4, unit="round", stream=stream) as progress:
        progress.message("begun")
        for step in (1, 2):
            clock.now += 1
            progress.update(step, 1000 * step, loss=5.0 / step, lr=3e-4)
        line = f"round 2/4 [{'#' * 8}{'.' * 8}]  loss 2.5  lr 0.0003  1,000 tokens/s  0:00:02 left"
        assert stream.screen() == ["begun", line]
        progress.message("saved")
        assert stream.screen() == ["begun", "saved", line]
        progress.close()
    assert stream.screen() == ["begun", "saved", line, ""]


@given(columns=st.integers(1, 200), step=st.integers(1, 10**6), loss=st.floats())
def test_the_live_line_fits_any_width(columns, step, loss):
    progress = Progress(None, total=10**6, stream=Terminal())
    progress.update(step, 128 * step, loss=loss, reward=0.1, entropy=1e9)
    line = progress._compose(step, {"loss": loss, "reward": 0.1, "entropy": 1e9}, columns - 1)
    assert len(line) <= columns - 1
    if columns >= 80:
        assert f"loss {loss:.4g}" in line and "tokens/s" in line and line.endswith("left")


def test_the_width_is_that_of_the_terminal_itself():
    pty, termios = pytest.importorskip("pty"), pytest.importorskip("termios")
    host, terminal = pty.openpty()
    with open(terminal, "w") as stream:
        for columns in (30, 100):
            termios.tcsetwinsize(terminal, (24, columns))
            with Progress(None, total=4, stream=stream) as progress:
                progress.update(1, 10, loss=1.0)
            shown = os.read(host, 10**4).decode().strip("\r\n").split("\r")
            assert max(map(len, shown)) < columns and ("[" in shown[-1]) == (columns == 100)
    os.close(host)
