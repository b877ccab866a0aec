"""Try what the test suite has no time for, and count what fails.

    python -m tests.drills kills                    40 runs killed, each gone on with to the same bits
    python -m tests.drills checkpoints --count 5000
    python -m tests.drills                          all of them

The suite runs a short version of each (tests/test_drills.py). Exit code 1 if anything failed.
"""

import inspect
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import TextIO

from minimoe.cli import Parser, non_negative_int, output_file, positive_int, run, settle

if __name__ == "__main__":
    settle()    # before NumPy is imported

from minimoe.errors import InputError
from tests.bad_arguments import arguments
from tests.bad_checkpoints import checkpoints
from tests.endurance import agreement, generations, load, verifier
from tests.kills import kills
from tests.writes import writes

# name -> drill(tally, count, seed): what it does is the first line of its docstring, and its default count its length
DRILLS: dict[str, Callable[["Tally", int, int], None]] = {
    "kills": kills, "writes": writes, "checkpoints": checkpoints, "arguments": arguments,
    "verifier": verifier, "agreement": agreement, "generations": generations, "load": load,
}
SHOWN = 5    # failures told of each kind


class Tally:
    """What was tried, by kind, and what failed; a line that tells how far a drill is."""

    def __init__(self, name: str = "drill", stream: TextIO | None = None):
        self.name, self.stream = name, stream
        self.tried: Counter[str] = Counter()
        self.failures: dict[str, list[str]] = {}
        self.told = self.begun = time.monotonic()

    def record(self, kind: str, case: str, problem: str = "") -> None:
        """Count a case of this kind; `problem` says in what it failed, if it did."""
        self.tried[kind] += 1
        if problem:
            self.failures.setdefault(kind, []).append(f"{case}: {problem}")
        if self.stream and (problem or time.monotonic() > self.told + 1):
            self.told = time.monotonic()
            live = "\r" if self.stream.isatty() else ""
            print(f"{live}{self.name}: {self.tried.total():,} tried, {self.failed} failed, {self.told - self.begun:.0f} s",
                  end="" if live else "\n", file=self.stream, flush=True)

    @property
    def failed(self) -> int:
        return sum(map(len, self.failures.values()))

    def table(self) -> str:
        """Return a line for each kind, and the first failures of each."""
        width = max(map(len, self.tried), default=0)
        lines = [f"{self.name:{width}}  {'tried':>7}  failed"]
        for kind, tried in self.tried.items():
            failures = self.failures.get(kind, [])
            lines.append(f"{kind:{width}}  {tried:7,}  {len(failures):6,}")
            lines += [f"    {failure}" for failure in failures[:SHOWN]]
        return "\n".join(lines)


def main() -> int:
    parser = Parser(description=__doc__)
    told = "; ".join(f"{name}: {inspect.getdoc(drill).splitlines()[0].rstrip('.')}" for name, drill in DRILLS.items())
    parser.add_argument("names", nargs="*", metavar="DRILL", help=f"{told}; nothing means all")
    parser.add_argument("--count", type=positive_int, help="how many cases, about; by default as many as the drill needs")
    parser.add_argument("--seed", type=non_negative_int, default=0, help="of what is drawn")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="also write the counts and failures there")
    args = parser.parse_args()
    for name in args.names:
        if name not in DRILLS:
            raise InputError(f"there is no drill {name!r}; there are {', '.join(DRILLS)}")
    tallies = []
    for name in args.names or DRILLS:
        tally = Tally(name, sys.stderr)
        tallies.append(tally)
        count = args.count or inspect.signature(DRILLS[name]).parameters["count"].default
        DRILLS[name](tally, count, args.seed)
        print(f"\n{tally.table()}\n", flush=True)
    tried, failed = sum(tally.tried.total() for tally in tallies), sum(tally.failed for tally in tallies)
    print(f"{tried:,} tried, {failed} failed")
    if args.json:
        args.json.write_text(json.dumps({t.name: {"tried": t.tried, "failures": t.failures} for t in tallies}, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    run(main)
