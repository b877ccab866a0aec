"""Read a chapter: its fenced blocks, its prose, its headings; quoted code and printed output compared with what is so."""

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

LESSONS = Path(__file__).parent
ROOT = LESSONS.parent
OPENING = re.compile(r"^( *)(`{3,}|~{3,})([^\n`]*)$")
NUMBER = re.compile(r"[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?")


@dataclass(frozen=True)
class Fence:
    """One fenced block. Its first line of text is line `line + 1` of the page."""

    info: str       # what stands behind the opening backticks: "python source=minimoe/model.py"
    body: str       # the text between the fences, every line ended
    line: int       # of the opening fence, counted from 1
    last: int       # line of the closing one
    start: int      # character at which the body starts
    indent: int

    @property
    def language(self) -> str:
        return self.info.split()[0] if self.info.split() else ""

    @property
    def source(self) -> str:
        """The file that the block quotes, or ""."""
        return next((word.removeprefix("source=") for word in self.info.split() if word.startswith("source=")), "")


class Page:
    """A Markdown file, read apart."""

    def __init__(self, text: str):
        self.text = text

    @cached_property
    def fences(self) -> list[Fence]:
        found, opened, at, start, body = [], None, 0, 0, []
        for number, line in enumerate(self.text.splitlines(keepends=True), 1):
            at += len(line)
            bare = line.rstrip("\n")
            if opened is None:
                if match := OPENING.match(bare):
                    opened, first, start, body = match, number, at, []
            elif bare.strip() and set(bare.strip()) == {opened[2][0]} and len(bare.strip()) >= len(opened[2]):
                found.append(Fence(opened[3].strip(), "".join(body), first, number, start, len(opened[1])))
                opened = None
            else:
                body.append(line)
        if opened is not None:
            raise ValueError(f"line {first}: this fence is never closed")
        return found

    @cached_property
    def lines(self) -> list[tuple[int, str]]:
        """(number, line) of what stands outside all fences."""
        inside = {n for fence in self.fences for n in range(fence.line, fence.last + 1)}
        return [(n, line) for n, line in enumerate(self.text.splitlines(), 1) if n not in inside]

    @cached_property
    def prose(self) -> list[tuple[int, str]]:
        """(number, line) outside all fences, without formulas, code, images, and where links lead to."""
        return [(n, bare(line)) for n, line in self.lines]

    @cached_property
    def headings(self) -> list[tuple[int, int, str]]:
        """(line number, level, text)"""
        found = [(n, re.match(r"(#{1,6}) +(.*?)\s*$", line)) for n, line in self.lines]
        return [(n, len(match[1]), match[2]) for n, match in found if match]

    @cached_property
    def anchors(self) -> set[str]:
        """What `#name` may lead to, as GitHub names headings."""
        seen: dict[str, int] = {}
        names = set()
        for _, _, heading in self.headings:
            name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
            names.add(f"{name}-{seen[name]}" if name in seen else name)
            seen[name] = seen.get(name, 0) + 1
        return names

    @cached_property
    def links(self) -> list[tuple[int, str, str]]:
        """(line number, text, address) of every link; an image's text begins with "!"."""
        return [(n, match[1] + match[2], match[3]) for n, line in self.lines
                for match in re.finditer(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)", without_code(line))]

    def section(self, heading: str) -> str:
        """The text under a `##` heading, up to the next one; "" if there is none."""
        starts = {text: n for n, level, text in self.headings if level == 2}
        if heading not in starts:
            return ""
        ends = [n for n in starts.values() if n > starts[heading]]
        return "\n".join(self.text.splitlines()[starts[heading] : min(ends) - 1 if ends else None])

    @property
    def words(self) -> int:
        return sum(len(re.findall(r"\b[A-Za-z][\w'-]*", line)) for _, line in self.prose)


def without_code(line: str) -> str:
    """The line without its formulas and code."""
    line = re.sub(r"\$`[^`]*`\$", " ", line)
    return re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", " ", line)


def bare(line: str) -> str:
    line = re.sub(r"!\[[^\]]*\]\([^)]*\)", " ", without_code(line))
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line)


def chapters() -> Iterator[Path]:
    """The chapters there are, in order."""
    yield from sorted(LESSONS.glob("[0-9][0-9]-*.md"))


def appendices() -> Iterator[Path]:
    """The pages that come after the chapters, without exercises."""
    yield from sorted(LESSONS.glob("appendix-*.md"))


def stands_in(quoted: str, source: str) -> bool:
    """Whether the lines of `quoted` stand in `source`, together and in this order, at whatever indentation."""
    def lines(text: str) -> list[str]:
        return [line.rstrip() for line in textwrap.dedent(text).strip("\n").splitlines()]

    wanted, there = lines(quoted), source.splitlines()
    return any(lines("\n".join(there[i : i + len(wanted)])) == wanted for i in range(len(there) - len(wanted) + 1))


def same_output(expected: str, printed: str) -> bool:
    """Whether a command printed what the text shows: numbers to the last digit shown, `...` for anything at all.

    How many blanks stand between two words does not matter.
    """
    def tidy(text: str) -> str:
        return "\n".join(re.sub(r"(?<=\S) +", " ", line.rstrip()) for line in text.strip("\n").splitlines())

    pattern, shown = "", []
    for piece in re.split(rf"( *\.\.\. *|{NUMBER.pattern})", tidy(expected)):
        if piece.strip(" ") == "...":
            pattern += "(?s:.*?)"
        elif NUMBER.fullmatch(piece):
            pattern += f"({NUMBER.pattern})"
            shown.append(piece)
        else:
            pattern += re.escape(piece)
    match = re.fullmatch(pattern, tidy(printed))
    return match is not None and all(near(want, got) for want, got in zip(shown, match.groups()))


def near(want: str, got: str) -> bool:
    """Whether `got` is the number `want`, up to one unit of the last digit of `want`; whole numbers must be equal."""
    mantissa, _, exponent = want.lower().partition("e")
    if "." not in mantissa and not exponent:
        return want == got
    digits = len(mantissa.partition(".")[2])
    return abs(float(want) - float(got)) <= 1.0001 * 10.0 ** (int(exponent or 0) - digits)
