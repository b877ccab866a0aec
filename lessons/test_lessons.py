"""The chapters are whole: their form, formulas, links, figures, exercises and faults. What their blocks do is run by conftest.py."""

import inspect
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lessons import break_it, grade, known_answers
from lessons.grading import Exercise, Wrong, catches_all, compare
from lessons.markdown import LESSONS, ROOT, Page, appendices, chapters, near, same_output, stands_in
from lessons.mutants import MUTANTS, planted
from lessons.nudge import nudged
from minimoe import cli
from minimoe.config import PRESETS
from minimoe.errors import InputError
from minimoe.model import MiniMoE

CHAPTERS = list(chapters())
PAGES = [*CHAPTERS, *appendices()]
EVERY_CHAPTER = pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
EVERY_PAGE = pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
NUMBERS = range(1, 16)
WORDS = 1100, 2700

# In this order, and no others; those marked are in every chapter
HEADINGS = {"Shapes": False, "Forward": False, "Deriving the backward": False, "The same in code": False, "Check it": False,
            "Experiment": True, "Break it": False, "Exercises": True, "Answers": True, "In the real model": False,
            "Further reading": True}

# Refused by GitHub, or not the same everywhere
MACROS = re.compile(
    r"\\(operatorname|mbox|hbox|phantom|hphantom|vphantom|newcommand|renewcommand|providecommand|def|gdef|edef|let|DeclareMathOperator"
    r"|require|href|url|class|style|cssId|unicode|html\w*|includegraphics|color|textcolor|tag|label|ref|eqref)(?![A-Za-z])"
)
WORDS_NOT_USED = re.compile(
    r"\b(simply|obvious(?:ly)?|trivial(?:ly)?|clearly|of course|it can be shown|it is easy to see|easy to see|needless to say|as is well known"
    r"|delve\w*|seamless\w*|blazing\w*|cutting[- ]edge|state[- ]of[- ]the[- ]art|groundbreaking|game[- ]chang\w*|unlock\w*|supercharge\w*"
    r"|sessions?|helpers?|workplace|workspace|issues?|pull requests?)\b|design\.md|(?<![\w.])/\w+/",
    re.I,
)


def form(text: str, number: int) -> list[str]:
    """Return what is wrong with a chapter's headings and first lines."""
    page, wrong = Page(text), []
    wrong += opened(text, str(number))
    sections = [heading for _, level, heading in page.headings if level == 2]
    wrong += [f"`## {heading}` is none of {', '.join(HEADINGS)}" for heading in sections if heading not in HEADINGS]
    wrong += [f"`## {heading}` is missing" for heading, needed in HEADINGS.items() if needed and heading not in sections]
    known = [heading for heading in sections if heading in HEADINGS]
    if known != [heading for heading in HEADINGS if heading in known]:
        wrong.append(f"the headings stand in another order: {', '.join(known)}")
    if not WORDS[0] <= page.words <= WORDS[1]:
        wrong.append(f"{page.words} words; from {WORDS[0]} to {WORDS[1]} are read in one sitting")
    return wrong


def opened(text: str, name: str) -> list[str]:
    """Return what is wrong with the first lines of a page: a chapter's, or an appendix'."""
    page, wrong = Page(text), []
    first = text.splitlines()[0] if text else ""
    if not re.fullmatch(rf"# {name}\. \S.*", first):
        wrong.append(f"line 1: expected `# {name}. Title`, not {first!r}")
    if len([level for _, level, _ in page.headings if level == 1]) != 1:
        wrong.append("a page has one heading of the first level")
    opening = text.partition("\n## ")[0]
    if not re.search(r"^[*_]\S[^*_]*\?[*_]", opening, re.M | re.S):
        wrong.append("the opening asks a question in italics")
    if not re.search(r"^Time: \d+ minutes to read, \d+ to run\.", opening, re.M):
        wrong.append("the opening has no line `Time: 25 minutes to read, 2 to run.`")
    if not re.search(r"\]\(\.\./minimoe/", opening):
        wrong.append("the opening links the code that is explained")
    return wrong


def formulas(text: str) -> list[str]:
    """Return what GitHub would not show, or not as it is meant."""
    page, wrong = Page(text), []
    lines, outside = text.splitlines(), page.lines
    for n, line in outside:
        rest = re.sub(r"\$`[^`]+`\$", "", line)
        rest = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", rest)
        if "$" in rest or r"\(" in rest or r"\[" in rest:
            wrong.append(f"line {n}: a formula in a line stands between $` and `$")
        for match in re.finditer(r"\$`([^`]+)`\$", line):
            before, after = line[: match.start()][-1:], line[match.end() :][:1]
            if re.match(r"\w", before) or re.match(r"\w", after):
                wrong.append(f"line {n}: {match[0]} is glued to {before or after!r}")
            if line.lstrip().startswith("|") and "|" in match[1]:
                wrong.append(f"line {n}: | in a formula splits the table's cell; write \\lvert x \\rvert")
            wrong += [f"line {n}: {fault}" for fault in in_formula(match[1], display=False)]
    details = [n for n, line in outside if re.search(r"<details", line, re.I)]
    closed = [n for n, line in outside if re.search(r"</details", line, re.I)]
    for fence in page.fences:
        if fence.language != "math":
            continue
        if fence.indent:
            wrong.append(f"line {fence.line}: a formula stands in the first column, in no list")
        if lines[fence.line - 2 : fence.line - 1] != [""] or lines[fence.last : fence.last + 1] not in ([""], []):
            wrong.append(f"line {fence.line}: a formula stands between blank lines")
        if any(start < fence.line and not any(start < end < fence.line for end in closed) for start in details):
            wrong.append(f"line {fence.line}: a formula inside <details> is not shown")
        wrong += [f"line {fence.line}: {fault}" for fault in in_formula(fence.body, display=True)]
    return wrong


def in_formula(tex: str, display: bool) -> list[str]:
    """Return what is wrong with a formula itself."""
    wrong = [f"GitHub refuses \\{name}" for name in MACROS.findall(tex)]
    if not tex.isascii():
        wrong.append(f"{[c for c in tex if not c.isascii()][0]!r} in a formula; write it as a command")
    plain = re.sub(r"\\[\\{}$%#&]", "", tex)
    if plain.count("{") != plain.count("}"):
        wrong.append(f"braces do not pair in {tex.strip()!r}")
    if re.search(r"[$%#]", plain):
        wrong.append(f"a bare $, % or # in {tex.strip()!r}")
    if len(re.findall(r"\\left(?![A-Za-z])", tex)) != len(re.findall(r"\\right(?![A-Za-z])", tex)):
        wrong.append(f"\\left and \\right do not pair in {tex.strip()!r}")
    begun, ended = re.findall(r"\\begin\{(\w+\*?)\}", tex), re.findall(r"\\end\{(\w+\*?)\}", tex)
    if sorted(begun) != sorted(ended):
        wrong.append("\\begin and \\end do not pair")
    if (r"\\" in tex or re.search(r"(?<!\\)&", tex)) and not begun:
        wrong.append(r"\\ and & need \begin{aligned}")
    if display and re.search(r"\n[ \t]*\n", tex.strip("\n")):
        wrong.append("a blank line ends the formula")
    return wrong


def words(text: str) -> list[str]:
    """Return the words and signs that the lessons do without."""
    wrong = []
    for n, line in Page(text).prose:
        wrong += [f"line {n}: {match[0]!r}" for match in WORDS_NOT_USED.finditer(line)]
        wrong += [f"line {n}: an exclamation mark"] * ("!" in re.sub(r"<!--.*?-->", "", line))
    return wrong


def blocks(text: str) -> list[str]:
    """Return the fenced blocks that nothing looks after, and output that differs from one NumPy to the next."""
    wrong = []
    for fence in Page(text).fences:
        if fence.language not in ("python", "sh", "text", "math"):
            wrong.append(f"line {fence.line}: a block is python, sh, text or math, not {fence.language!r}")
        if re.search(r"^(?!>>>|\.\.\.).*\bnp\.(float|int|bool_?|str_)\d*\(", fence.body, re.M) and ">>>" in fence.body:
            wrong.append(f"line {fence.line}: NumPy 1 prints scalars otherwise; use float(), round() or an f-string")
    return wrong


def links(path: Path, text: str) -> list[str]:
    """Return the links that lead nowhere, and figures without words or a script."""
    page, wrong = Page(text), []
    for n, shown, address in page.links:
        if re.match(r"https?://", address):
            continue
        name, _, anchor = address.partition("#")
        target = (path.parent / name).resolve() if name else path
        if name and not (target.is_relative_to(ROOT) and target.exists()):
            wrong.append(f"line {n}: there is no {address}")
        elif anchor and anchor not in (page if target == path else Page(target.read_text(encoding="utf-8"))).anchors:
            wrong.append(f"line {n}: {name or 'this page'} has no heading #{anchor}")
        if shown.startswith("!"):
            wrong += [f"line {n}: {fault}" for fault in figure(path, shown[1:], name)]
    return wrong


def figure(path: Path, alternative: str, name: str) -> list[str]:
    """Return what is wrong with a figure that a chapter shows."""
    number, wrong = path.name[:2], []
    script = LESSONS / "figures" / f"ch{number}.py"
    match = re.fullmatch(r"figures/(\d\d-[a-z0-9-]+)\.svg", name)
    if not match or match[1][:2] != number:
        return [f"a figure of this chapter is called figures/{number}-name.svg, not {name}"]
    if len(alternative) < 20:
        wrong.append(f"say in words what {name} shows")
    if not script.exists() or match[1] not in script.read_text(encoding="utf-8"):
        wrong.append(f"figures/ch{number}.py does not make {match[1]}")
    return wrong


def company(path: Path, text: str) -> list[str]:
    """Return what is missing beside a chapter, and what it does not say of it."""
    number, page, wrong = path.name[:2], Page(text), []
    wrong += [f"there is no {folder}/ch{number}.py" for folder in ("exercises", "solutions", "checks")
              if not (LESSONS / folder / f"ch{number}.py").exists()]
    if f"python -m lessons.grade {number}" not in page.section("Exercises"):
        wrong.append(f"the exercises do not say `python -m lessons.grade {number}`")
    if f"(solutions/ch{number}.py)" not in page.section("Answers"):
        wrong.append(f"the answers do not link solutions/ch{number}.py")
    if page.section("Break it") and f"python -m lessons.break_it {number}" not in page.section("Break it"):
        wrong.append(f"`Break it` does not say `python -m lessons.break_it {number}`")
    if page.section("Deriving the backward"):
        planted_here = len(break_it.faults(int(number))) if int(number) in break_it.CHAPTERS else 0
        if planted_here < 4:
            wrong.append(f"a chapter with a backward has four faults or more in mutants.py; here are {planted_here}")
        if not page.section("Break it"):
            wrong.append("a chapter with a backward has `## Break it`")
    if f"receipts/ch{number}" in text:
        wrong += [f"there is no receipts/ch{number}.{kind}" for kind in ("json", "py")
                  if not (LESSONS / "receipts" / f"ch{number}.{kind}").exists()]
        if f"python -m lessons.receipts.ch{number}" not in text:
            wrong.append(f"the text does not say that `python -m lessons.receipts.ch{number}` makes the receipt")
    return wrong + cited(text)


def cited(text: str) -> list[str]:
    """Return what is called an arXiv number and is none."""
    found = re.findall(r"arXiv[: ]+(\S*\d\S*?)(?=[\s,;:)\]]|\.(?:\s|$)|$)", text, re.I)
    return [f"{identifier!r} is no arXiv number" for identifier in found if not re.fullmatch(r"\[?\d{4}\.\d{4,5}(v\d+)?", identifier)]


@EVERY_CHAPTER
def test_form(path):
    assert form(path.read_text(encoding="utf-8"), int(path.name[:2])) == []


@pytest.mark.parametrize("path", list(appendices()), ids=lambda path: path.stem)
def test_appendix(path):
    text = path.read_text(encoding="utf-8")
    assert opened(text, "Appendix") == cited(text) == []
    assert f"[{text.splitlines()[0].removeprefix('# Appendix. ')}]({path.name})" in (LESSONS / "README.md").read_text(encoding="utf-8")


@EVERY_PAGE
def test_formulas(path):
    assert formulas(path.read_text(encoding="utf-8")) == []


@EVERY_PAGE
def test_words(path):
    assert words(path.read_text(encoding="utf-8")) == []


@EVERY_PAGE
def test_blocks(path):
    assert blocks(path.read_text(encoding="utf-8")) == []


@EVERY_PAGE
def test_links_and_figures(path):
    assert links(path, path.read_text(encoding="utf-8")) == []


@EVERY_CHAPTER
def test_company(path):
    assert company(path, path.read_text(encoding="utf-8")) == []


@EVERY_CHAPTER
def test_solutions_pass(path):
    number = path.name[:2]
    listed = grade.exercises(int(number))
    file = LESSONS / "solutions" / f"ch{number}.py"
    solutions, section = grade.load(file), Page(path.read_text(encoding="utf-8")).section("Exercises")
    assert len(listed) >= 2 and len({exercise.name for exercise in listed}) == len(listed)
    for exercise in listed:
        assert f"`{exercise.name}`" in section, f"{exercise.name} is not in the text"
        assert exercise.minutes > 0 and exercise.hint
        assert grade.grade(exercise, solutions, file) == ("passed", "")


@EVERY_CHAPTER
def test_stubs_are_not_solved(path):
    file = LESSONS / "exercises" / f"ch{path.name[:2]}.py"
    wrong = stubs(int(path.name[:2]), file)
    if wrong and changed(file):
        pytest.skip(f"{file.relative_to(ROOT)} has been written in since it was committed: {', '.join(wrong)}")
    if wrong:
        name = file.relative_to(ROOT)
        pytest.fail(f"{name} should hold stubs: {', '.join(wrong)}. If you have solved them there, nothing is wrong", pytrace=False)


def stubs(chapter: int, file: Path) -> list[str]:
    """Return what tells a file of exercises from the stubs that are shipped."""
    try:
        module = grade.load(file)
    except InputError as error:
        return [str(error)]
    solutions, wrong = grade.load(LESSONS / "solutions" / f"ch{chapter:02}.py"), []
    for exercise in grade.exercises(chapter):
        verdict, stub = grade.grade(exercise, module, file)[0], getattr(module, exercise.name, None)
        if verdict != "not yet done":
            wrong.append(f"{exercise.name} is {verdict}")
        elif inspect.signature(stub) != inspect.signature(getattr(solutions, exercise.name)) or not stub.__doc__:
            wrong.append(f"{exercise.name} has other arguments than its solution, or no docstring")
    return wrong


def changed(file: Path) -> bool:
    """Whether git says that a file is not as it was committed. Where there is no git, it does not say so."""
    try:
        done = subprocess.run(["git", "status", "--porcelain", "--", file.name], cwd=file.parent, text=True, capture_output=True)
    except OSError:
        return False
    return done.returncode == 0 and bool(done.stdout)


def test_all_chapters_are_there_and_the_readme_lists_them():
    listed = [name for _, _, name in Page((LESSONS / "README.md").read_text(encoding="utf-8")).links if re.match(r"\d\d-", name)]
    assert listed == [path.name for path in CHAPTERS] and [int(path.name[:2]) for path in CHAPTERS] == list(NUMBERS)


def test_readme():
    path = LESSONS / "README.md"
    text = path.read_text(encoding="utf-8")
    assert links(path, text) == [] and words(text) == [] and formulas(text.replace("``$` ``", "").replace("`` `$ ``", "")) == []


def test_titles_in_the_readme_are_those_of_the_chapters():
    shown = {name: text for _, text, name in Page((LESSONS / "README.md").read_text(encoding="utf-8")).links}
    for path in CHAPTERS:
        assert shown[path.name] == path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")


def test_minutes_in_the_readme_are_those_of_the_chapters():
    rows = dict(re.findall(r"^\| \[[^\]]*\]\((\S+)\) \|[^|]*\| (\d+) \|", (LESSONS / "README.md").read_text(encoding="utf-8"), re.M))
    for path in CHAPTERS:
        assert rows[path.name] == re.search(r"^Time: (\d+) minutes", path.read_text(encoding="utf-8"), re.M)[1], path.name


def test_every_figure_is_shown():
    shown = {name.removeprefix("figures/") for path in CHAPTERS for _, _, name in Page(path.read_text(encoding="utf-8")).links}
    assert {path.name for path in (LESSONS / "figures").glob("*.svg")} <= shown


# The lints can fail

GOOD = """# 7. Title

*What is it?* It is this. And that.

Time: 25 minutes to read, 2 to run. It explains [linear.py](../minimoe/layers/linear.py).

## Shapes

Two formulas, $`y = x^2`$ and ($`\\lvert x \\rvert`$), `$code` and text.

| a | b |
|---|---|
| $`x`$ | y |

```math
\\begin{aligned} y &= x \\\\ z &= \\frac{x}{y} \\end{aligned}
```

## Experiment

## Exercises

`python -m lessons.grade 07`

## Answers

[solutions](solutions/ch07.py)

## Further reading

""" + "word " * 1100


def test_a_good_page_has_nothing_wrong():
    assert form(GOOD, 7) == formulas(GOOD) == words(GOOD) == blocks(GOOD) == []


@pytest.mark.parametrize(
    "old, new",
    [
        ("# 7.", "# 8."), ("## Shapes", "## Shape"), ("## Experiment\n", ""), ("*What is it?*", "What is it?"), ("Time: 25", "Time 25"),
        ("## Shapes", "# Shapes"), ("word " * 200, ""), ("word " * 200, "word " * 2000), ("../minimoe/", "../mini/"),
        ("## Exercises\n\n`python -m lessons.grade 07`\n\n## Answers", "## Answers\n\n## Exercises"),
    ],
)  # fmt: skip
def test_form_can_fail(old, new):
    assert old in GOOD and form(GOOD.replace(old, new, 1), 7)


@pytest.mark.parametrize(
    "bad",
    [
        "A price $x$ here", "$$\nx\n$$", r"\(x\)", r"\[x\]", "glued$`x`$ here", "glued $`x`$s", r"$`\operatorname{f}`$", r"$`\mbox{f}`$",
        r"$`\phantom{f}`$", r"$`\newcommand{f}`$", r"$`\def\f{x}`$", "| a | $`|x|`$ |", "$`{x`$", "$`x # y`$", r"$`\left( x`$", r"$`x \\ y`$",
        "$`\u03b1`$", r"$`\begin{aligned} x`$", "- item\n\n  ```math\n  x\n  ```\n", "text\n```math\nx\n```\n", "\n```math\nx\n```\ntext",
        "<details>\n\n```math\nx\n```\n\n</details>", "\n```math\nx\n\ny\n```\n", "\n```math\nx \\\\ y\n```\n", "$`x % y`$",
    ],
)  # fmt: skip
def test_formulas_can_fail(bad):
    assert formulas(GOOD + "\n\n" + bad), bad


@pytest.mark.parametrize("bad", ["This is simply so.", "Obviously.", "Done!", "the helper said", "It can be shown that", "see /home/x"])
def test_words_can_fail(bad):
    assert words(bad)


@pytest.mark.parametrize("good", ["`helper`", "![a picture](x.svg)", "$`n!`$", "```python\nsimply = 1\n```", "a tissue", "<!-- x -->"])
def test_code_and_formulas_are_not_words(good):
    assert not words(good)


@pytest.mark.parametrize("bad", ["```\nx\n```", "```c\nx\n```", "```python\n>>> x\nnp.float64(0.5)\n```", "```python\n>>> x\n[np.int64(5)]\n```"])
def test_blocks_can_fail(bad):
    assert blocks(bad)


@pytest.mark.parametrize(
    "bad",
    [
        "[a](nowhere.md)", "[a](#nowhere)", "[a](README.md#nowhere)", "[a](../../etc)", "![a picture of something](figures/07-nothing.svg)",
        "![short](figures/01-error-against-step.svg)", "![a picture of something](figures/style.svg)",
    ],
)  # fmt: skip
def test_links_can_fail(bad):
    path = LESSONS / "07-routing.md"
    assert links(path, f"# 7. Title\n\n{bad}\n")


def test_links_that_lead_somewhere():
    path = LESSONS / "07-routing.md"
    assert links(path, "# 7. A *b* `c`, d\n\n[a](#7-a-b-c-d) [b](README.md#break-it) [c](../minimoe/model.py) `[d](nowhere)` [e](https://x.y)") == []


@pytest.mark.parametrize(
    "old, new",
    [
        ("grade 07", "grade 08"), ("solutions/ch07", "solutions/ch08"), ("## Shapes", "## Break it\n"), ("word", "arXiv 2104.9"),
        ("word", "[paper](https://arxiv.org/abs/1) arXiv:12.12345"), ("## Shapes", "## Deriving the backward"), ("word", "`lessons/receipts/ch07.py`"),
    ],
)  # fmt: skip
def test_company_can_fail(old, new):
    path = LESSONS / "07-routing.md"
    assert set(company(path, GOOD.replace(old, new, 1))) - set(company(path, GOOD))


def test_a_solved_stub_is_told(tmp_path):
    assert stubs(7, LESSONS / "solutions/ch07.py") == [f"{exercise.name} is passed" for exercise in grade.exercises(7)]
    names, path = [exercise.name for exercise in grade.exercises(7)], tmp_path / "ch07.py"
    path.write_text(f"def {names[0]}(*more):\n    raise NotImplementedError\ndef {names[1]}(*arguments):\n    return 1\n")
    assert [one.split()[:3] for one in stubs(7, path)] == [[names[0], "has", "other"], [names[1], "is", "wrong"], [names[2], "is", "missing"]]
    path.write_text("if x\n")
    assert len(stubs(7, path)) == 1 and "does not run" in stubs(7, path)[0]


@pytest.mark.skipif(not shutil.which("git"), reason="without git")
def test_what_is_not_as_it_was_committed(tmp_path):
    path = tmp_path / "ch07.py"
    path.write_text("x = 1\n")
    assert not changed(path)                                              # no repository
    for arguments in ["init", "-q"], ["add", "."], ["-c", "user.name=x", "-c", "user.email=x", "-c", "commit.gpgsign=no", "commit", "-qm", "x"]:
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    assert not changed(path)
    path.write_text("x = 2\n")
    assert changed(path)


def test_a_missing_file_is_told():
    assert len([wrong for wrong in company(LESSONS / "99-none.md", GOOD) if wrong.startswith("there is no")]) == 3


@pytest.mark.parametrize(
    "expected, printed, same",
    [
        ("a 0.36", "a 0.357", True), ("a 0.36", "a 0.38", False), ("3 ok", "4 ok", False), ("a ... ok", "a 1 2\n3 ok", True),
        ("a ... 3", "a 1e-12   3", True), ("1.0e-03", "1.04e-3", True), ("1e-3", "3e-3", False), ("a  b", "a b", True), ("  a", "a", False),
        ("a", "a\nb", False), ("1,024", "1,024", True), ("[1. 2.]", "[1. 2.]", True), ("x -0.5", "x 0.5", False),
    ],
)  # fmt: skip
def test_output_is_compared_to_its_last_digit(expected, printed, same):
    assert same_output(expected, printed) is same


def test_near():
    assert near("0.357", "0.3574999") and not near("0.357", "0.3591") and not near("12", "13") and not near("0.5", "nan")


def test_quoted_code():
    source = "def f():\n    a = 1      # one\n    b = 2\n"
    assert stands_in("a = 1      # one\nb = 2\n", source) and stands_in("    b = 2", source)
    assert not stands_in("a = 1\nb = 2\n", source) and not stands_in("b = 2\na = 1      # one\n", source)


# Grading


EXERCISES = [
    Exercise("right", 5, lambda f: compare("y", f(3), 6), "a hint"),
    Exercise("wrong", 5, lambda f: compare("y", f(3), 6), "another"),
    Exercise("raises", 5, lambda f: f(3), ""),
    Exercise("stub", 5, lambda f: f(3), ""),
    Exercise("leaves", 5, lambda f: f(3), ""),
    Exercise("arguments", 5, lambda f: f(3), ""),
    Exercise("missing", 5, lambda f: f(3), ""),
]
ANSWERS = """import sys

def right(x):
    return 2 * x

def wrong(x):
    return 3 * x

def raises(x):
    return [][x]

def stub(x):
    raise NotImplementedError

def leaves(x):
    sys.exit(3)

def arguments():
    return 0
"""


def test_verdicts(tmp_path):
    path = tmp_path / "answers.py"
    path.write_text(ANSWERS)
    module = grade.load(path)
    verdicts = {exercise.name: grade.grade(exercise, module, path) for exercise in EXERCISES}
    assert verdicts == {
        "right": ("passed", ""),
        "wrong": ("wrong", "y: off by 3, where it is 9 and should be 6"),
        "raises": ("raised", "IndexError in line 10, `return [][x]`: list index out of range"),
        "stub": ("not yet done", "5 minutes"),
        "leaves": ("raised", "SystemExit in line 16, `sys.exit(3)`: 3"),
        "arguments": ("raised", "TypeError when it was called, or with what it returned: arguments() takes 0 positional arguments but 1 was given"),
        "missing": ("missing", "answers.py has no function of this name"),
    }


def test_a_fault_is_caught_by_any_exception_but_not_by_a_test_that_always_raises():
    model, ids, rows = MiniMoE(PRESETS["micro"], np.random.default_rng(0)), np.array([[4], [5], [6]]), [2, 0, 0, 1]
    state = model.step(ids)[1]
    fault = [mutant for mutant in MUTANTS if mutant.name == "rows-not-exchanged"]
    catches_all(lambda: model.step(ids[rows], [part.take(rows) for part in state]), fault)    # there `step` itself raises ValueError
    with pytest.raises(Wrong, match="0 of 1 caught; missed: rows-not-exchanged"):
        catches_all(lambda: None, fault)
    with pytest.raises(Wrong, match="called again: ZeroDivisionError"):
        catches_all(lambda: 1 / 0, fault)


@pytest.fixture
def command(monkeypatch, capsys):
    """Run a command in this process; return its exit code, stdout and stderr."""

    def run(module, *arguments):
        monkeypatch.setattr(sys, "argv", [module.__name__, *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            cli.run(module.main)
        return left.value.code or 0, *capsys.readouterr()

    return run


def test_grade_solutions_and_stubs(tmp_path, command):
    code, out, err = command(grade, "1", "--solutions")
    assert code == 0 and re.search(r"^(\d) of \1 passed$", out, re.M) and not err
    name, path = grade.exercises(1)[0].name, tmp_path / "my own.py"
    path.write_text(f"def {name}(*arguments):\n    raise NotImplementedError\n")
    code, out, err = command(grade, "01", "--file", path, "--hint")
    assert code == 1 and "not yet done" in out and "hint: " in out and "\n0 of" in out and not err
    again = shlex.split(command(grade, "01", "--file", path)[1].partition("hints: ")[2])
    assert again == ["python", "-m", "lessons.grade", "01", "--file", str(path), "--hint"]
    assert command(grade, "01", "--hint", name) == (0, grade.exercises(1)[0].hint + "\n", "")
    broken = tmp_path / "broken.py"
    broken.write_text("x = 1\nif x\n")
    code, out, err = command(grade, "01", "--file", broken)
    assert code == 2 and "does not run: SyntaxError in line 2" in err and err.count("\n") == 1
    text = tmp_path / "answers.txt"                                        # a file by any name
    text.write_text((LESSONS / "solutions/ch01.py").read_text())
    assert command(grade, "01", "--file", text)[0] == 0
    assert command(grade, "01", "--file", tmp_path)[2].endswith("is no file\n")
    broken.write_bytes(b"\x7fELF\0\0")
    code, out, err = command(grade, "01", "--file", broken)
    assert code == 2 and not out and err.endswith("broken.py is no text, so it is no Python file\n") and err.count("\n") == 1


@pytest.mark.parametrize(
    "module, arguments",
    [
        (grade, []), (grade, ["99"]), (grade, ["x"]), (grade, ["01", "--hint", "nothing"]), (grade, ["01", "--file", "nowhere.py"]),
        (grade, ["01", "--file", "lessons/exercises/ch01.py", "--solutions"]), (grade, ["0" * 5000 + "7"]), (break_it, ["0" * 5000 + "7"]), (break_it, []), (break_it, ["15"]), (break_it, ["x"]),
        (break_it, ["01", "--answer", "x"]), (break_it, ["01", "--plant", "x"]), (break_it, ["01", "--seed", "-1"]),
        (break_it, ["01", "--give-up", "--answer", "linear-dx-sign"]), (break_it, ["01", "--plant", "linear-dx-sign", "--seed", "1"]),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(command, module, arguments):
    code, out, err = command(module, *arguments)
    assert code == 2 and not out and err.count("\n") == 1


def test_commands_run_by_their_names():
    for module in "grade", "break_it":
        done = subprocess.run([sys.executable, "-m", f"lessons.{module}", "x"], cwd=ROOT, text=True, capture_output=True)
        assert done.returncode == 2 and done.stderr.startswith(f"lessons.{module}: ") and done.stderr.count("\n") == 1


# Break it


def test_every_fault_is_in_some_chapter_and_every_seed_plants_another():
    assert set(MUTANTS) == {mutant for chapter in break_it.CHAPTERS for mutant in break_it.faults(chapter)}
    names = {mutant.name for mutant in MUTANTS} | {mutant.layer for mutant in MUTANTS}
    for chapter, keys in break_it.CHAPTERS.items():
        listed = break_it.faults(chapter)
        assert set(keys) <= names and len(listed) >= 4
        assert {break_it.pick(chapter, seed) for seed in range(len(listed))} == set(listed)


@pytest.mark.parametrize("check", known_answers.CHECKS)
def test_known_answers_pass_and_catch_their_faults(check):
    assert break_it.checked(check).passed
    for mutant in (mutant for mutant in MUTANTS if mutant.layer == check):
        with planted(mutant):
            assert not break_it.checked(check).passed, mutant.name
    assert break_it.checked(check).passed


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_a_fault_is_shown_as_lines_of_its_file(mutant):
    file, number, whole, broken = break_it.line_of(mutant)
    source = (ROOT / file).read_text(encoding="utf-8").splitlines()
    assert whole and whole != broken and source[number - 1].strip().startswith(whole[0].strip())
    assert "\n".join(break_it.explained(mutant)).count(mutant.name) == 1


def test_play(command):
    mutant = break_it.pick(1, 2)
    code, first, _ = command(break_it, "01", "--seed", 2)
    assert code == 0 and "FAILED" in first and mutant.name in first
    assert mutant.broken not in first and mutant.why not in first
    code, right, _ = command(break_it, "01", "--seed", 2, "--answer", mutant.name)
    assert code == 0 and right.startswith("Right.") and mutant.broken in right
    code, wrong, _ = command(break_it, "01", "--seed", 2, "--answer", next(one.name for one in break_it.faults(1) if one != mutant))
    assert code == 1 and wrong.startswith("No.") and mutant.name not in wrong
    assert command(break_it, "01", "--plant", mutant.name)[1].count("FAILED") == first.count("FAILED")
    assert command(break_it, "01", "--seed", 2, "--give-up")[1].startswith(mutant.name)
    assert "every probe" not in command(break_it, "10", "--plant", "model-blocks-in-forward-order")[1]      # 44 tensors fail
    assert "[211,4]" in command(break_it, "10", "--plant", "model-lookup-forgotten")[1]
    code, model, _ = command(break_it, "10", "--plant", "model-lookup-forgotten")
    assert code == 0 and re.search(r"^  embedding.weight +\d\.\de[-+]\d\d$", model, re.M) and re.search(r"^  read +zero +ok +ok +ok$", model, re.M)


def test_places_say_which_rows_are_wrong(command):
    name, (code, no, _) = "swiglu-value-without-activation", command(break_it, "03", "--answer", "rmsnorm-scale-dropped")
    mutant = next(mutant for mutant in break_it.faults(3) if mutant.name == name)
    with planted(mutant), break_it.listening() as heard:
        break_it.checked("expert")
    ratios = {place: ratio for place, ratio in heard["up.weight"].items() if place != "direction"}
    gate = {place for place in ratios if int(re.match(r"\[(\d+),", place)[1]) < 7}        # F = 7
    assert gate and set(ratios) - gate and {place for place in ratios if ratios[place] == "1"} == gate
    assert set(heard["down.weight"].values()) == {"1"}
    assert code == 1 and no.count("analytic / numeric:") == 2 and "[1,4,3]" in no
    first, second = break_it.places({"a": {"[0]": "1", "direction": "-0.123"}})
    assert first.split() == ["a", "[0]", "direction"] and second.split() == ["1", "-0.123"] and len(first) == len(second)


def test_quotations_show_their_file():
    for path in PAGES:
        for fence in Page(path.read_text(encoding="utf-8")).fences:
            first = fence.body.partition("\n")[0].strip()
            named = first.removeprefix("# ") if re.fullmatch(r"# \S+/\S+\.\w+", first) else ""
            assert named == fence.source, f"{path.name}, line {fence.line}"


def test_nudged():
    x, y = np.array([[1.0, 2.0], [3.0, -4.0]]), np.array([0.5])
    before = x.copy()
    assert np.allclose(nudged(lambda: np.sum(x**3) * y[0], x), 1.5 * x**2) and np.array_equal(x, before)
