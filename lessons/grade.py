"""Grade what you wrote for a chapter, in lessons/exercises/chNN.py.

    python -m lessons.grade 07                      every exercise of chapter 7
    python -m lessons.grade 07 --hint               and a hint for each that does not pass yet
    python -m lessons.grade 07 --hint NAME          only the hint for that exercise
    python -m lessons.grade 07 --file mine.py       of another file

The answers are in lessons/solutions/chNN.py. Exit code 0 if all exercises pass, 1 if not.
"""

import shlex
import sys
import traceback
from importlib import import_module
from pathlib import Path
from types import ModuleType

from minimoe.cli import Parser, run, settle
from minimoe.errors import InputError

if __name__ == "__main__":
    settle()    # before NumPy is imported

from lessons.grading import Exercise, Wrong

LESSONS = Path(__file__).parent


def chapter_number(text: str) -> int:
    """Return 7 for "7" or "07". Raises `InputError` for what has no exercises."""
    there = sorted(path.stem[2:] for path in (LESSONS / "checks").glob("ch[0-9][0-9].py"))
    if text.zfill(2) not in there:
        raise InputError(f"there is no chapter {text}; there are {', '.join(there)}")
    return int(text)


def exercises(chapter: int) -> list[Exercise]:
    return import_module(f"lessons.checks.ch{chapter:02}").EXERCISES


def load(path: Path) -> ModuleType:
    """Run a file of answers. Raises `InputError` if it cannot be read or does not run."""
    path = path.absolute()
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is no file")
    try:
        source = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    if b"\0" in source:
        raise InputError(f"{path} is no text, so it is no Python file")
    try:
        code = compile(source, str(path), "exec")
        module = ModuleType(f"answers_{path.stem}")
        module.__file__ = str(path)
        sys.modules[module.__name__] = module                             # dataclasses look themselves up there
        exec(code, module.__dict__)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise InputError(f"{path} does not run: {told(error, path)}") from None
    return module


def told(error: BaseException, path: Path) -> str:
    """Return an exception as one line: its type, the line of the reader's file where it happened, its message."""
    try:
        message = " ".join(str(error).split())
    except Exception:                                                     # its __str__ is the reader's, too
        message = ""
    name = type(error).__name__
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f"{name} in line {error.lineno}: {error.msg}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    where = f" in line {frames[-1].lineno}, `{frames[-1].line}`" if frames else " when it was called, or with what it returned"
    return f"{name}{where}" + f": {message}" * bool(message)


def grade(exercise: Exercise, module: ModuleType, path: Path) -> tuple[str, str]:
    """Return the verdict ("passed", "not yet done", "missing", "wrong" or "raised") and what there is to say of it."""
    function = vars(module).get(exercise.name)
    if not callable(function):
        return "missing", f"{path.name} has no function of this name"
    try:
        exercise.check(function)
    except Wrong as wrong:
        return "wrong", str(wrong)
    except KeyboardInterrupt:
        raise
    except NotImplementedError:
        return "not yet done", f"{exercise.minutes} minutes"
    except BaseException as error:    # whatever the reader's code raises, SystemExit too, is told in one line
        return "raised", told(error, path.absolute())
    return "passed", ""


def main() -> int:
    parser = Parser(description=__doc__)
    parser.add_argument("chapter", help="its number, such as 07")
    parser.add_argument("--hint", nargs="?", const="", metavar="NAME", help="a hint for this exercise, or for all that do not pass yet")
    parser.add_argument("--file", type=Path, metavar="PATH", help="grade this file instead of lessons/exercises/chNN.py")
    parser.add_argument("--solutions", action="store_true", help="grade lessons/solutions/chNN.py")
    args = parser.parse_args()
    if args.file and args.solutions:
        raise InputError("--file and --solutions name two files to grade; give one")
    chapter = chapter_number(args.chapter)
    listed = exercises(chapter)
    if args.hint:
        named = [exercise for exercise in listed if exercise.name == args.hint]
        if not named:
            raise InputError(f"no exercise of chapter {chapter:02} is called {args.hint!r}; there are {', '.join(e.name for e in listed)}")
        print(named[0].hint)
        return 0

    folder = "solutions" if args.solutions else "exercises"
    path = args.file or LESSONS / folder / f"ch{chapter:02}.py"
    module = load(path)
    width, passed = max(len(exercise.name) for exercise in listed), 0
    for exercise in listed:
        verdict, words = grade(exercise, module, path)
        passed += verdict == "passed"
        print(f"{exercise.name:{width}}  {verdict}" + f": {words}" * bool(words), flush=True)
        if args.hint is not None and verdict != "passed":
            print(f"{'':{width}}  hint: {exercise.hint}")
    print(f"\n{passed} of {len(listed)} passed")
    if passed < len(listed):
        again = f"python -m lessons.grade {chapter:02}" + f" --file {shlex.quote(str(shown(path)))}" * bool(args.file)
        print(f"your file: {shown(path)}" + f"; hints: {again} --hint" * (args.hint is None))
    return 0 if passed == len(listed) else 1


def shown(path: Path) -> Path:
    """The path, from the current folder where it lies in it."""
    path = path.absolute()
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


if __name__ == "__main__":
    run(main)
