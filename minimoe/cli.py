"""What every command shares: its parser, its argument types, and how it ends.

NumPy is not imported here: `settle` comes before it.
"""

import argparse
import ctypes
import errno
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NoReturn

from minimoe.errors import InputError

LARGEST_INT = 2**32 - 1
LONGEST = 2**16    # characters of a message
DISK_ERRORS = {getattr(errno, name, None) for name in ("ENOSPC", "EDQUOT", "EFBIG", "EIO")}    # of a write: they name no file


def settle() -> None:
    """Hold BLAS to one thread, and keep freed memory in the process. A command calls it before it imports NumPy.

    Until `run` begins, Ctrl-C ends the process at once: half-imported libraries have nothing useful to say of it.

    A training step makes and drops hundreds of arrays of a megabyte. By default the C library gives such memory back to
    the system at once, and every new array is paid for again, page by page.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    if "numpy" not in sys.modules:
        for library in ("OPENBLAS", "MKL", "OMP", "BLIS", "VECLIB"):
            os.environ[f"{library}_{'MAXIMUM' if library == 'VECLIB' else 'NUM'}_THREADS"] = "1"
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):
        M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
        libc.mallopt(M_MMAP_THRESHOLD, 32 << 20)     # arrays up to 32 MiB come from the heap, not from the system
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)    # and the heap does not shrink
        libc.mallopt(M_ARENA_MAX, 1)                 # one heap for all threads


def program() -> str:
    """Return the command's name, with which its messages begin: `minimoe.pretrain` for `python -m minimoe.pretrain`."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name if spec else os.path.basename(sys.argv[0])


class HelpFormatter(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """Keep the description's line breaks, and show every default that says something."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is None or action.default is False:
            return action.help
        return super()._get_help_string(action)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line. Give it `description=__doc__`, and every argument a `help`.

    A default written as on the command line ("80,100") is parsed like one, and the help shows it as it is typed.
    """

    def __init__(self, **settings: Any) -> None:
        defaults: dict[str, Any] = {"prog": program(), "allow_abbrev": False, "formatter_class": HelpFormatter}
        super().__init__(**defaults | settings)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        for argument in sys.argv[1:] if args is None else args:
            if argument.startswith("--") and argument.endswith("=--"):  # argparse would ask no type and give an empty list
                self.error(f"argument {argument.removesuffix('=--')}: expected a value, not '--'")
        return super().parse_args(args)

    def error(self, message: str) -> NoReturn:
        fail(f"{message} (--help lists the arguments)")


def positive_int(text: str) -> int:
    """An argument type: a whole number from 1 to LARGEST_INT."""
    return _number(text, int, 1, LARGEST_INT, f"a whole number from 1 to {LARGEST_INT}")


def non_negative_int(text: str) -> int:
    """An argument type: a whole number from 0 to LARGEST_INT."""
    return _number(text, int, 0, LARGEST_INT, f"a whole number from 0 to {LARGEST_INT}")


def positive_float(text: str) -> float:
    """An argument type: a number above 0, neither infinity nor NaN."""
    return _number(text, float, math.ulp(0.0), sys.float_info.max, "a finite number above 0")


def non_negative_float(text: str) -> float:
    """An argument type: a number from 0 up, neither infinity nor NaN."""
    return _number(text, float, 0.0, sys.float_info.max, "a finite number, 0 or above")


def finite_float(text: str) -> float:
    """An argument type: any number but infinity and NaN."""
    return _number(text, float, -sys.float_info.max, sys.float_info.max, "a finite number")


def steps_list(text: str) -> tuple[int, ...]:
    """An argument type: "80,100,200" as whole numbers above 0, sorted, each once; "" is no step at all."""
    try:
        return tuple(sorted({positive_int(step) for step in text.split(",")})) if text else ()
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"expected steps such as 80,100,200, not {text!r}") from None


def output_file(text: str) -> Path:
    """An argument type: a file to be written, in a folder that exists, so that no work is done for nothing."""
    path = Path(text)
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text} cannot be written: {'it' if path.is_dir() else path.parent} is "
                                         f"{'a folder' if path.is_dir() else 'no folder'}")
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text} cannot be written: no permission")
    return path


def _number(text: str, kind: Any, least: float, most: float, expected: str):
    try:
        value = kind(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most:  # NaN never is
        raise argparse.ArgumentTypeError(f"expected {expected}, not {text!r}")
    return value


def run(main: Callable[[], int | None]) -> NoReturn:
    """Run a command and exit with what it returns: `if __name__ == "__main__": run(main)`.

    What the user can mend (bad input, no permission, a full disk, too little memory) is one line on stderr and exit
    code 2. Ctrl-C exits with 130 and a closed pipe with 141, as the shell has it. Any other exception is a bug, and
    keeps its traceback.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)  # `settle` had another
    for name in "stdout", "stderr":
        if not getattr(sys, name):
            setattr(sys, name, open(os.devnull, "w"))  # closed by the shell
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal or pipe that knows few characters is no reason to fail
    try:
        status = main()
        sys.stdout.flush()  # here, so that a closed pipe is met inside the try
    except InputError as error:
        fail(str(error))
    except KeyboardInterrupt:
        fail("interrupted", status=130)
    except BrokenPipeError:
        flush_output()
        sys.exit(141)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and error.filename is None:
            fail("the current folder is no longer there; change to one that is")
        if error.filename is None and error.errno not in DISK_ERRORS:
            raise
        fail(f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror))
    except MemoryError:
        fail("out of memory; ask for less at once")
    sys.exit(status)


def fail(message: str, status: int = 2) -> NoReturn:
    """Print one line on stderr, the command's name in front, and exit.

    What would not be seen is escaped: a file from a stranger may have a name that a terminal obeys.
    """
    line = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in " ".join(message[:LONGEST].splitlines()))
    with suppress(OSError):  # nobody to tell: stderr may be a file on the disk that is full
        print(f"{program()}: {line}", file=sys.stderr)
    flush_output()
    sys.exit(status)


def flush_output() -> None:
    """Write out what is printed; what cannot be (a closed pipe, a full disk) goes nowhere, or Python would exit with 120."""
    for stream in sys.stdout, sys.stderr:
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class StopRequest:
    """Whether Ctrl-C was pressed: a training loop looks at `requested` after each step."""

    requested: bool = False


@contextmanager
def until_interrupt() -> Iterator[StopRequest]:
    """Within it, Ctrl-C only sets `requested`, however often it is pressed: a step or a save is never cut short.

    Outside the main thread, where Python allows no signal handler, `requested` stays False.
    """
    stop = StopRequest()

    def request(signum, frame) -> None:
        stop.requested = True

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    previous = signal.signal(signal.SIGINT, request)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, previous)
