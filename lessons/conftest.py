"""Run the text of the lessons: `python -m pytest lessons`, or one chapter, `python -m pytest lessons/07-routing.md`.

What becomes of a fenced block is said in lessons/README.md. All blocks of a chapter share one namespace, in their order.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from unittest import SkipTest

import pytest

from minimoe.cli import settle

settle()    # as every command does, before anything imports NumPy

try:
    from sybil import Document, Example, Region, Sybil
except ModuleNotFoundError:
    raise pytest.UsageError("the lessons are run by sybil: pip install -e '.[test,lessons]'") from None

from doctest import ELLIPSIS

from sybil.evaluators.doctest import NUMBER, DocTestEvaluator
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.abstract.doctest import DocTestStringParser
from sybil.region import Lexeme

from lessons.markdown import ROOT, Fence, Page, same_output, stands_in

DOCTESTS = DocTestStringParser(DocTestEvaluator(NUMBER | ELLIPSIS))
PYTHON = PythonEvaluator()
SECONDS = 60      # after which a command is given up


def regions(document: Document) -> Iterator[Region]:
    """Yield what there is to run or to compare in a page.

    `<!-- needs: torch -->` in it: its Python is skipped where that is not installed. Quotations are compared all the same.
    """
    absent = [name for name in re.findall(r"^<!-- needs: (\w+) -->$", document.text, re.M) if not find_spec(name)]

    def skip(example: Example) -> None:
        raise SkipTest(f"needs {' and '.join(absent)}")

    for region in blocks(document):
        if absent and region.evaluator not in (quote, shell):
            region.evaluator = skip
        yield region


def blocks(document: Document) -> Iterator[Region]:
    fences = Page(document.text).fences
    for fence, following in zip(fences, [*fences[1:], None]):
        whole = fence.start, fence.start + len(fence.body)
        if fence.source:
            yield Region(*whole, parsed=fence, evaluator=quote)
        elif fence.language == "python" and re.search(r"^ *>>>", fence.body, re.M):
            for region in DOCTESTS(fence.body, document.path):
                region.start += fence.start
                region.end += fence.start
                yield region
        elif fence.language == "python":
            yield Region(*whole, parsed=Lexeme(fence.body, 0, -1), evaluator=PYTHON)
        elif fence.language == "sh":
            between = document.text.splitlines()[fence.last : following.line - 1] if following else ["?"]
            output = following.body if following and following.language == "text" and not "".join(between).strip() else None
            yield Region(*whole, parsed=(fence, output), evaluator=shell)


def quote(example: Example) -> str | None:
    """Return what is wrong with quoted code, if anything."""
    fence: Fence = example.parsed
    path = ROOT / fence.source
    if not path.is_file():
        return f"there is no file {fence.source}"
    first, _, lines = fence.body.partition("\n")
    if first.strip() != f"# {fence.source}":
        return f"quoted code shows its file in its first line, `# {fence.source}`, for the page does not show what stands behind the fence"
    if not lines.strip() or not stands_in(lines, path.read_text(encoding="utf-8")):
        return f"these lines do not stand in {fence.source}, together and in this order:\n{lines}"
    return None


def shell(example: Example) -> str | None:
    """Return what is wrong with a block of commands, or with the output that stands below it."""
    fence, output = example.parsed
    commands = [line for line in fence.body.replace("\\\n", " ").splitlines() if shlex.split(line, comments=True)]
    for command in commands:
        if wrong := doubt(command):
            return f"{command}\n{wrong}"
    if output is None:
        return None
    printed, errors = "", ""
    for command in commands:
        _, *arguments = shlex.split(command, comments=True)
        try:
            done = subprocess.run([sys.executable, *arguments], cwd=ROOT, text=True, capture_output=True, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return f"{command}\nis not done after {SECONDS} seconds"
        printed += done.stdout
        errors += done.stderr
    if not same_output(output, printed):
        return f"{fence.body}printed\n\n{printed}\nand not\n\n{output}\non stderr: {errors}"
    return None


def doubt(command: str) -> str | None:
    """Return why this command cannot work, if it is seen without running it."""
    words = shlex.split(command, comments=True)
    if words[0] == "pip":
        extras = set(re.findall(r"^(\w+) =$", (ROOT / "setup.cfg").read_text(encoding="utf-8").partition("extras_require]")[2], re.M))
        unknown = {name for word in words for listed in re.findall(r"^\.\[(.*)\]$", word) for name in listed.split(",")} - extras
        return f"setup.cfg has no extra {', '.join(sorted(unknown))}" if unknown else None
    if words[:2] != ["python", "-m"] or len(words) < 3:
        return "expected `python -m module ...` or `pip ...`"
    module, arguments = words[2], words[3:]
    if module == "pytest":
        missing = [word for word in arguments if not word.startswith("-") and not (ROOT / word.partition("::")[0]).exists()]
        return f"there is no {missing[0]}" if missing else None
    try:
        found = find_spec(module)
    except ModuleNotFoundError:
        found = None
    if not found:
        return f"there is no module {module}"
    options = [word.partition("=")[0] for word in arguments if word.startswith("--")]
    unknown = [option for option in options if not re.search(rf"(?<![\w-]){option}(?![\w-])", described(module))] if options else []
    return f"{module} knows no option {', '.join(unknown)}" if unknown else None


@cache
def described(module: str) -> str:
    """What `--help` prints."""
    done = subprocess.run([sys.executable, "-m", module, "--help"], cwd=ROOT, text=True, capture_output=True, timeout=SECONDS)
    return done.stdout


@pytest.fixture(scope="session", autouse=True)
def from_the_root() -> Iterator[None]:
    """Every block runs in the repository's root, like the commands that the text shows."""
    before = os.getcwd()
    os.chdir(ROOT)
    yield
    os.chdir(before)


pytest_collect_file = Sybil([regions], patterns=["[0-9][0-9]-*.md", "appendix-*.md", "README.md"]).pytest()
