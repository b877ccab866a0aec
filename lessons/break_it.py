"""Break a line of the code a chapter explains, in memory only, and see what the checks make of it. Which line is it?

    python -m lessons.break_it 07                           the fault of seed 0; each seed plants another one
    python -m lessons.break_it 07 --seed 3
    python -m lessons.break_it 07 --seed 3 --answer NAME    is it this one?
    python -m lessons.break_it 07 --seed 3 --give-up        tell me
    python -m lessons.break_it 07 --plant NAME              this fault, and what the check says

Read which tensors fail and which do not: gradient flows from the output down, so what fails lies at the broken line or
below it, and what is right does not depend on it. Then read the ratios: one number everywhere is a factor, 0 is a path
that is cut, and numbers that differ are a term that is missing or another one's. Those at single places also say which rows,
columns or positions are right, where the ratio is 1. Exit code 1 for a wrong answer.
"""

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from minimoe.cli import Parser, non_negative_int, run, settle
from minimoe.errors import InputError

if __name__ == "__main__":
    settle()    # before NumPy is imported

import numpy as np

from lessons import known_answers
from lessons.mutants import MUTANTS, Mutant, planted
from minimoe import gradcheck
from minimoe.gradcheck import Report

# What each chapter plays with: names of checks, whose faults are all of it, and names of single faults
CHAPTERS: dict[int, tuple[str, ...]] = {
    1: ("linear",),
    2: ("embedding", "cross_entropy", "model-lookup-forgotten", "model-head-forgotten"),
    3: ("rmsnorm", "expert"),
    4: ("rope",),
    5: ("sparse_attention",),
    6: ("linear_attention",),
    7: ("experts", "moe"),
    8: ("load_balance", "moe-balance-ignored", "moe-balance-past-the-softmax", "model-balance-not-passed-on", "model-balance-hides-the-loss"),
    9: ("read", "write", "block-identity-lost", "block-read-lost"),
    10: ("block_linear", "block_sparse", "model", "model-balance-of-another-block", "model-balance-hides-the-loss"),
    11: ("adamw", "clipping"),
    12: ("clipping", "linear-overwrites", "experts-overwrites", "rmsnorm-overwrites", "linear-attention-saved-overwritten",
         "experts-saved-overwritten", "rmsnorm-saved-overwritten", "block-shared-memory", "cross-entropy-plain-mean"),
    13: ("decoding",),
    14: ("rloo", "policy_gradient"),
}
DRAWS = 4       # of other inputs and weights, for the ratios
LONG = 20       # a table of more tensors is drawn block by block
FEW = 2         # of a whole model's tensors, so many are shown place by place


def faults(chapter: int) -> list[Mutant]:
    """Return what may be planted in a chapter. Raises `InputError` if there is nothing."""
    if chapter not in CHAPTERS:
        raise InputError(f"no faults are planted in chapter {chapter:02}; there are some in {', '.join(f'{n:02}' for n in CHAPTERS)}")
    return [mutant for mutant in MUTANTS if {mutant.layer, mutant.name} & set(CHAPTERS[chapter])]


def pick(chapter: int, seed: int) -> Mutant:
    """Return the fault of a seed; seeds 0, 1, 2, ... plant each of the chapter's once before any comes twice."""
    listed = faults(chapter)
    return listed[np.random.default_rng(chapter).permutation(len(listed))[seed % len(listed)]]


def checked(layer: str, seed: int = 0) -> Report:
    """Return the report of one check, of what is now in memory."""
    checks: dict[str, Callable[[], Report]] = {**gradcheck.cases(seed), **known_answers.CHECKS}
    with np.errstate(all="ignore"):                                       # what is wrong may overflow
        report = checks[layer]()
    report.name = layer
    return report


def table(report: Report) -> str:
    """Return the report as text; that of a whole model as one line a kind of tensor, a column a block."""
    if len(report.rows) <= LONG or not any(row.tensor.startswith("blocks.") for row in report.rows):
        return str(report)
    cells: dict[str, dict[int, str]] = {}
    for row in report.rows:
        match = re.fullmatch(r"blocks\.(\d+)\.(.*)", row.tensor)
        block, name = (int(match[1]), match[2]) if match else (0, row.tensor)
        cells.setdefault(name, {})[block] = f"{row.error:.1e}" if row.verdict == "FAILED" else row.verdict
    width, blocks = max(map(len, cells)), sorted({block for row in cells.values() for block in row})
    lines = [f"{report.name}: the worst relative error of what FAILED; zero: has no gradient, and should have none; in block"]
    lines.append(" " * (width + 2) + "".join(f"{b:>9}" for b in blocks))
    lines += [f"  {name:{width}}" + "".join(f"{row.get(b, ''):>9}" for b in blocks).rstrip() for name, row in cells.items()]
    return "\n".join(lines)


def folded(names: list[str]) -> str:
    """Return names of tensors, with those of several blocks put together: blocks.{0,1}.write."""
    together: dict[str, list[str]] = {}
    for name in names:
        match = re.fullmatch(r"blocks\.(\d+)\.(.*)", name)
        together.setdefault(match[2] if match else name, []).extend([match[1]] if match else [])
    return ", ".join(f"blocks.{{{','.join(blocks)}}}.{name}" if blocks else name for name, blocks in together.items())


def has_ratios(layer: str) -> bool:
    """Whether there are quotients of two gradients, in other draws too: not of a whole model, nor where there is no gradient."""
    return layer not in known_answers.CHECKS and not layer.startswith("model")


def ratios(layer: str) -> dict[str, list[str]]:
    """Return, for each tensor that fails, analytic / numeric at its worst probe, for some draws of inputs and weights."""
    found: dict[str, list[str]] = {}
    if not has_ratios(layer):
        return found
    for seed in range(1, DRAWS + 1):
        for row in checked(layer, seed).rows:
            match = re.search(r"analytic (\S+), numeric (\S+),", row.detail)
            if match and float(match[2]):
                found.setdefault(row.tensor, []).append(f"{float(match[1]) / float(match[2]) + 0.0:.3g}")    # + 0.0: no "-0"
    return found


@contextmanager
def listening() -> Iterator[dict[str, dict[str, str]]]:
    """Collect what the checks inside the `with` block see: of every tensor, by place or "direction", analytic / numeric."""
    heard: dict[str, dict[str, str]] = {}
    judge = gradcheck.judge

    def listen(tensor: str, dx: np.ndarray, probes: list, rounding: float, zero: bool) -> gradcheck.Row:
        def place(where: Any) -> str:
            return where if where == "direction" else str([int(i) for i in np.unravel_index(where, dx.shape)]).replace(" ", "")

        def ratio(analytic: float, numeric: float) -> str:
            if abs(numeric) <= rounding:
                return "both 0" if abs(analytic) <= rounding else "not 0"
            return f"{analytic / numeric:.3g}" if abs(analytic) > rounding else "0"

        heard[tensor] = {place(where): ratio(analytic, numeric) for where, analytic, numeric in probes}
        return judge(tensor, dx, probes, rounding, zero)

    gradcheck.judge = listen
    try:
        yield heard
    finally:
        gradcheck.judge = judge


def failing(report: Report, heard: dict[str, dict[str, str]]) -> list[str]:
    """Return what was heard of the tensors that fail, as lines; none if they are many, of a whole model."""
    failed = {row.tensor: heard[row.tensor] for row in report.rows if row.verdict == "FAILED" and row.tensor in heard}
    return places(failed) if has_ratios(report.name) or len(failed) <= FEW else []


def places(heard: dict[str, dict[str, str]]) -> list[str]:
    """Return what was heard as lines: of each tensor its places, and under each the ratio there."""
    name = max(map(len, heard), default=0)
    lines = []
    for tensor, found in heard.items():
        widths = [max(len(where), len(ratio)) for where, ratio in found.items()]
        for head, cells in (tensor, found), ("", found.values()):
            lines.append(f"  {head:{name}}" + "".join(f"  {cell:>{width}}" for cell, width in zip(cells, widths)))
    return lines


def line_of(mutant: Mutant) -> tuple[str, int, list[str], list[str]]:
    """Return (file, line number, the whole lines that a fault touches, the same lines broken), without their comments."""
    module = import_module(mutant.module)
    source = inspect.getsource(module)
    core = mutant.line.strip()
    start = source.index(mutant.line) + mutant.line.index(core)
    begin = source.rfind("\n", 0, start) + 1
    end = source.index("\n", start + len(core))
    whole = source[begin:end]
    broken = source.replace(mutant.line, mutant.broken)[begin : end + len(mutant.broken) - len(mutant.line)].strip("\n")
    file = Path(module.__file__).relative_to(Path(__file__).parents[1]).as_posix()
    return file, source.count("\n", 0, begin) + 1, uncommented(whole), uncommented(broken)


def uncommented(code: str) -> list[str]:
    return textwrap.dedent(re.sub(r" {2,}#.*", "", code)).splitlines()


def planted_table(mutant: Mutant) -> list[str]:
    """Return what the check says of a fault, as lines."""
    with planted(mutant):
        with listening() as heard:
            report = checked(mutant.layer)
        seen = ratios(mutant.layer)
    lines = [*table(report).splitlines(), ""]
    if seen:
        width = max(map(len, seen))
        lines.append(f"analytic / numeric at the worst probe, with {DRAWS} other draws of inputs and weights:")
        lines += [f"  {tensor:{width}}  {'   '.join(numbers)}" for tensor, numbers in seen.items()]
        lines.append("")
    shown = failing(report, heard)
    if shown:
        lines += ["analytic / numeric at every probe of the table, the places and the random direction:", *shown, ""]
    return lines


def question(chapter: int, seed: int) -> str:
    """Return the table of a fault that is not named, and all that it may be."""
    lines = [f"One line of the code of chapter {chapter:02} is broken, in memory only. The check says:", ""]
    lines += planted_table(pick(chapter, seed))
    lines.append("Which fault is it? These are the lines as they should be, each with the faults that it may have:")
    places: dict[tuple[str, int, str], list[str]] = {}
    for mutant in faults(chapter):
        file, number, whole, _ = line_of(mutant)
        places.setdefault((file, number, "\n".join(f"      {line}" for line in whole)), []).append(mutant.name)
    for (file, number, whole), names in sorted(places.items()):
        lines += ["", f"  {file}:{number}", whole, *(f"    - {name}" for name in names)]
    return "\n".join([*lines, "", f"Say which: python -m lessons.break_it {chapter:02} --seed {seed} --answer NAME"])


def answer(chapter: int, seed: int, name: str) -> tuple[bool, str]:
    """Return whether `name` is the fault of this seed, and what to say to that."""
    mutant, named = pick(chapter, seed), find(chapter, name)
    if named == mutant:
        return True, "\n".join(["Right.", "", *explained(mutant)])
    lines = [f"No. {name} is another one.", ""]
    for who, one in (name, named), ("Yours to find", mutant):
        with planted(one):
            for layer in mutant.layer, one.layer:                         # ratios can be compared within one check only
                with listening() as heard:
                    report = checked(layer)
                if not report.passed:
                    break
        failed = [row.tensor for row in report.rows if row.verdict == "FAILED"]
        shown = failing(report, heard)
        lines += [f"{who} fails the check {layer} in {folded(failed)}{'; analytic / numeric:' if shown else ''}", *shown, ""]
    return False, "\n".join([*lines, "Try again, or --give-up."])


def find(chapter: int, name: str) -> Mutant:
    """Return the chapter's fault of this name. Raises `InputError` if there is none."""
    listed = {mutant.name: mutant for mutant in faults(chapter)}
    if name not in listed:
        raise InputError(f"no fault of chapter {chapter:02} is called {name!r}; there are {', '.join(listed)}")
    return listed[name]


def explained(mutant: Mutant) -> list[str]:
    """Return what a fault is: its line as it stands, its line broken, and why a check fails."""
    file, number, whole, broken = line_of(mutant)
    return [f"{mutant.name}, {file}:{number}", "", *(f"  - {line}" for line in whole),
            *(f"  + {line}" for line in broken or ["(nothing)"]), "", *textwrap.wrap(mutant.why, 100)]


def main() -> int:
    parser = Parser(description=__doc__)
    parser.add_argument("chapter", help="its number, such as 07")
    parser.add_argument("--seed", type=non_negative_int, help="which fault to plant (default: 0)")
    parser.add_argument("--answer", metavar="NAME", help="the fault that you think it is")
    parser.add_argument("--plant", metavar="NAME", help="show what the check says of this fault, and what it is")
    parser.add_argument("--give-up", action="store_true", help="tell which one it is, and why the check says what it says")
    args = parser.parse_args()
    if not re.fullmatch("[0-9]{1,2}", args.chapter):
        raise InputError(f"expected the number of a chapter, such as 07, not {args.chapter!r}")
    chapter = int(args.chapter)
    faults(chapter)
    if (args.plant is not None) + (args.answer is not None) + args.give_up > 1:
        raise InputError("--plant, --answer and --give-up are three things to do; choose one")
    if args.plant is not None and args.seed is not None:
        raise InputError("--seed and --plant each say which fault to plant; give one")
    seed = args.seed or 0
    if args.plant is not None:
        mutant = find(chapter, args.plant)
        print("\n".join([*planted_table(mutant), *explained(mutant)]))
    elif args.give_up:
        print("\n".join(explained(pick(chapter, seed))))
    elif args.answer is not None:
        right, words = answer(chapter, seed, args.answer)
        print(words)
        return 0 if right else 1
    else:
        print(question(chapter, seed))
    return 0


if __name__ == "__main__":
    run(main)
