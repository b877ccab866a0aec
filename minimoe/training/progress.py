"""A live line for whoever watches, and metrics.jsonl for whoever looks later.

Everything a run tells goes to one stream (stderr unless given), messages included: stdout is left to results.
"""

import json
import math
import os
import sys
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from typing import TextIO

from minimoe.errors import InputError
from minimoe.files import write_text

WINDOW = 20  # steps over which speed is averaged
PLAIN_EVERY = 10  # steps between lines where there is no terminal
BAR = 30  # columns at most


class Progress:
    """Follow a loop from step `start` (steps already done) to step `total`. Make it right before the loop.

    path: the JSON Lines file, kept up to step `start` and appended to; a run from 0 begins it anew. None: no file.
    shown: the metrics to show, which are written all the same; None: all of them.
    quiet: nothing is shown or written.
    """

    def __init__(
        self,
        path: str | Path | None,
        total: int,
        start: int = 0,
        unit: str = "step",
        shown: Collection[str] | None = None,
        stream: TextIO | None = None,
        quiet: bool = False,
    ) -> None:
        if quiet:
            path, stream = None, open(os.devnull, "w")
        self.total, self.unit, self.shown = total, unit, shown
        self.stream = stream or sys.stderr
        self.terminal = self.stream.isatty()
        self.file: TextIO | None = None
        if path is not None:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            truncate(path, start)
            self.file = open(path, "a", encoding="utf-8", newline="\n")
        self.line = ""
        self.first = start + 1
        self.seconds = 0.0  # of work, pauses left out
        # (step, tokens, seconds) after each recent step; tokens before a resumed `start` are not known here
        self.recent = deque([(0, 0, 0.0)] if start == 0 else [], maxlen=WINDOW + 1)
        self.since = perf_counter()

    def update(self, step: int, tokens: int, **metrics) -> None:
        """Record that `step` is done, `tokens` having been seen since step 0, and show it.

        Writes {"step", each metric, "tokens", "seconds"}: seconds since the last update, pauses left out. Metrics are
        numbers, NumPy scalars or arrays, or lists of them; floats keep every digit. JSON has no NaN or infinity: they
        are written as null (and shown as they are).
        """
        now = perf_counter()
        seconds, self.since = now - self.since, now
        self.seconds += seconds
        self.recent.append((step, tokens, self.seconds))
        metrics = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in metrics.items()}
        if self.file:
            require_in_place(self.file)
            record = _plain({"step": step, **metrics, "tokens": tokens, "seconds": seconds})
            self.file.write(json.dumps(record, allow_nan=False) + "\n")
            self.file.flush()
        if self.terminal:
            self.line = self._compose(step, metrics, _columns(self.stream) - 1)
            self._draw(self.line)
        elif step % PLAIN_EVERY == 0 or step in (self.first, self.total):
            print(self._compose(step, metrics), file=self.stream, flush=True)

    def message(self, text: str) -> None:
        """Print `text` above the live line."""
        if self.line:
            self._draw("")
        print(text, file=self.stream, flush=True)
        if self.line:
            self._draw(self.line)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time spent within (evaluating, saving) counts neither as seconds of a step nor towards speed."""
        begin = perf_counter()
        try:
            yield
        finally:
            self.since += perf_counter() - begin

    def close(self) -> None:
        """End the live line and close the file; twice is the same as once."""
        if self.line:
            print(file=self.stream, flush=True)
            self.line = ""
        if self.file:
            self.file.close()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def _compose(self, step: int, metrics: dict, width: int | None = None) -> str:
        """Step, metrics, speed, time left. In a `width`: as many metrics as fit, then a bar in the room left over."""
        head, tail = f"{self.unit} {step}/{self.total}", ""
        (step0, tokens0, seconds0), (_, tokens1, seconds1) = self.recent[0], self.recent[-1]
        if step > step0 and seconds1 > seconds0:
            left = (self.total - step) * (seconds1 - seconds0) / (step - step0)
            tail = f"  {(tokens1 - tokens0) / (seconds1 - seconds0):,.0f} tokens/s"
            tail += f"  {timedelta(seconds=round(left))} left"
        shown = ""
        for name, value in metrics.items():
            if isinstance(value, (int, float)) and (self.shown is None or name in self.shown):
                more = f"  {name} {value:.4g}"
                if width is None or len(head + shown + more + tail) <= width:
                    shown += more
        if width is None:
            return head + shown + tail
        bar = min(BAR, width - len(head + shown + tail) - 3)
        if bar >= 5:
            done = min(bar, bar * step // max(self.total, 1))
            head += f" [{'#' * done}{'.' * (bar - done)}]"
        return (head + shown + tail)[:width]

    def _draw(self, line: str) -> None:
        """Overwrite the live line; an empty one wipes it."""
        blank = " " * (_columns(self.stream) - 1)
        self.stream.write(f"\r{blank}\r{line}")
        self.stream.flush()


def require_in_place(file: TextIO) -> None:
    """Raise `InputError` if an open file is no longer where it was opened: what is saved beside it would be another run's."""
    try:
        if os.path.samestat(os.fstat(file.fileno()), os.stat(file.name)):
            return
    except FileNotFoundError:
        pass
    raise InputError(f"{file.name} was moved or deleted while it was written; move it back, and go on by --resume")


def truncate(path: str | Path, step: int) -> None:
    """Drop the lines of a metrics file after `step`, and any line that a kill cut short, all at once.

    Do nothing if there is no such file.
    """
    path = Path(path)
    if not path.exists():
        return
    if not path.is_file():
        raise InputError(f"{path} is no file; move it away")
    with open(path, encoding="utf-8", errors="replace") as file:
        kept = [line.rstrip("\n") + "\n" for line in file if _is_record(line, step)]
    write_text(path, "".join(kept))


def _is_record(line: str, step: int) -> bool:
    try:
        return json.loads(line)["step"] <= step
    except (ValueError, TypeError, KeyError, RecursionError):
        return False


def _plain(value):
    """Built-in types alone, and None for NaN and infinity."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except OSError:
        return 80
