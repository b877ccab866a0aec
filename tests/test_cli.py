import argparse
import os
import signal
import subprocess
import sys
import threading

import pytest

from minimoe import cli


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (cli.positive_int, {"1": 1, "400": 400}, ["0", "-1", "1.5", "", "x", "nan", "4294967296", "9" * 5000]),
        (cli.non_negative_int, {"0": 0, "4294967295": 2**32 - 1}, ["-1", "0.0", "x", "4294967296"]),
        (cli.positive_float, {"3e-4": 3e-4, "2": 2.0}, ["0", "-1e-9", "nan", "inf", "1e999", "x", ""]),
        (cli.non_negative_float, {"0": 0.0, "0.1": 0.1}, ["-0.1", "nan", "-inf", "inf", "x"]),
        (cli.steps_list, {"": (), "7": (7,), "200,80, 100,80": (80, 100, 200)}, ["0,5", "80,,100", "80;100", ",", "a"]),
    ],
)
def test_argument_types(kind, good, bad):
    assert {text: kind(text) for text in good} == good
    for text in bad:
        with pytest.raises(argparse.ArgumentTypeError) as refused:
            kind(text)
        assert repr(text) in str(refused.value) and "\n" not in str(refused.value)


def make_parser():
    parser = cli.Parser(description="Trains.\n\nExamples:\n    minimoe.train --steps 80\n    minimoe.train --resume")
    parser.add_argument("--steps", type=cli.positive_int, default=400, help="how many")
    parser.add_argument("--save-at", type=cli.steps_list, default="80,100", help="when to save")
    parser.add_argument("--resume", action="store_true", help="go on")
    parser.add_argument("--out", help="where to")
    return parser


def test_help_keeps_the_examples_apart_and_shows_the_defaults():
    shown = make_parser().format_help()
    assert "\n    minimoe.train --steps 80\n    minimoe.train --resume\n" in shown
    assert "how many (default: 400)" in shown and "when to save (default: 80,100)" in shown
    assert "None" not in shown and "False" not in shown
    assert make_parser().parse_args([]).save_at == (80, 100)


@pytest.mark.parametrize(
    "arguments", [["--steps", "0"], ["--step", "5"], ["--nothing"], ["--steps"], ["a\nb"], ["--steps=--"], ["--out=--"]]
)
def test_a_bad_argument_is_one_line_that_names_it(arguments, capsys):
    with pytest.raises(SystemExit) as left:
        make_parser().parse_args(arguments)
    error = capsys.readouterr().err
    assert left.value.code == 2
    assert error.startswith(f"{cli.program()}: ") and arguments[0].splitlines()[0].split("=")[0] in error
    assert error.count("\n") == 1 and error.endswith("\n")


def command(tmp_path, body, **pipes):
    """Starts `python -m hello`, a command whose main is `body`."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    tmp_path.joinpath("hello.py").write_text(
        "import errno, sys\nfrom minimoe.cli import run\nfrom minimoe.errors import InputError\n"
        f'def main():\n{lines}\nif __name__ == "__main__":\n    run(main)\n'
    )
    path = os.pathsep.join([str(tmp_path), os.getcwd(), *sys.path])
    environment = os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": ""}
    return subprocess.Popen(
        [sys.executable, "-m", "hello"], text=True, env=environment, **{"stderr": subprocess.PIPE} | pipes
    )


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        ("pass", 0, ""),
        ("return 1", 1, ""),
        ("raise InputError('no such\\nmodel; train one')", 2, "hello: no such model; train one\n"),
        ("raise InputError('no \\x1b[2J\\0\\udcff')", 2, "hello: no \\x1b[2J\\x00\\udcff\n"),
        ("raise KeyboardInterrupt", 130, "hello: interrupted\n"),
        ("raise MemoryError", 2, "hello: out of memory; ask for less at once\n"),
        ("open('missing/file')", 2, "hello: missing/file: No such file or directory\n"),
        ("raise OSError(errno.ENOSPC, 'No space left on device')", 2, "hello: No space left on device\n"),
        ("raise OSError(errno.EIO, 'Input/output error')", 2, "hello: Input/output error\n"),
        ("import minimoe.cli; assert 'numpy' not in sys.modules", 0, ""),
    ],
)
def test_how_a_command_ends(tmp_path, body, status, error):
    process = command(tmp_path, body)
    assert (process.communicate()[1], process.returncode) == (error, status)


@pytest.mark.skipif(os.name == "nt", reason="Windows deletes no folder that is in use")
def test_a_current_folder_that_was_deleted(tmp_path):
    process = command(tmp_path, f"import os, shutil; os.mkdir({str(tmp_path / 'gone')!r}); os.chdir({str(tmp_path / 'gone')!r})\n"
                                f"os.rmdir({str(tmp_path / 'gone')!r}); os.getcwd()")
    assert process.communicate()[1] == "hello: the current folder is no longer there; change to one that is\n"
    assert process.returncode == 2


def test_a_message_has_an_end(tmp_path):
    process = command(tmp_path, "raise InputError('x' * 10**6)")
    assert len(process.communicate()[1]) < 70_000


@pytest.mark.parametrize("body", ["raise ZeroDivisionError", "raise ValueError('bug')", "raise OSError(9, 'bug')"])
def test_a_bug_keeps_its_traceback(tmp_path, body):
    process = command(tmp_path, body)
    assert "Traceback" in process.communicate()[1] and process.returncode == 1


@pytest.mark.skipif(os.name == "nt", reason="Windows reports a closed pipe otherwise")
@pytest.mark.parametrize("body", ["print('one line, met when flushed')", "for i in range(99999): print(i)"])
def test_a_closed_pipe_is_quiet(tmp_path, body):
    read, write = os.pipe()
    os.close(read)
    process = command(tmp_path, body, stdout=write)
    os.close(write)
    assert (process.communicate()[1], process.returncode) == ("", 141)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no disk to be full")
@pytest.mark.parametrize(("body", "full", "status"), [
    ("print('result')", "stdout", 2), ("print('going on', file=sys.stderr)", "stderr", 2), ("raise InputError('bad')", "stderr", 2),
])
def test_a_full_disk_behind_what_is_printed(tmp_path, body, full, status):
    with open("/dev/full", "w") as disk:
        process = command(tmp_path, body, **{full: disk})
        error = process.communicate()[1]
    assert process.returncode == status and error == ("hello: No space left on device\n" if full == "stdout" else None)


@pytest.mark.skipif(os.name == "nt", reason="a shell of another kind")
@pytest.mark.parametrize(("body", "status"), [("print(1); print(2, file=sys.stderr)", 0), ("raise InputError('bad')", 2)])
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&- <&-"])
def test_what_the_shell_closed_is_not_missed(tmp_path, body, status, closed):
    command(tmp_path, body).communicate()                                 # writes hello.py
    path = os.pathsep.join([str(tmp_path), os.getcwd(), *sys.path])
    shell = f"exec {sys.executable} -m hello {closed}"
    done = subprocess.run(["sh", "-c", shell], env=os.environ | {"PYTHONPATH": path}, capture_output=True)
    assert done.returncode == status and b"Traceback" not in done.stderr


def test_ctrl_c_only_asks_for_a_stop():
    before = signal.getsignal(signal.SIGINT)
    with cli.until_interrupt() as stop:
        assert not stop.requested
        signal.raise_signal(signal.SIGINT)
        assert stop.requested
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(ZeroDivisionError), cli.until_interrupt() as stop:
        assert not stop.requested
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGINT) is before


def test_another_thread_runs_without_a_handler():
    seen = []

    def work():
        with cli.until_interrupt() as stop:
            seen.append(stop.requested)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False]


def test_an_output_file_needs_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.output_file("result.json").name == "result.json"
    for bad in "nowhere/result.json", ".":
        with pytest.raises(argparse.ArgumentTypeError, match="cannot be written"):
            cli.output_file(bad)
    tmp_path.joinpath("there.json").touch()
    for asked, path in ("new.json", tmp_path), ("there.json", "there.json"):
        with monkeypatch.context() as patch, pytest.raises(argparse.ArgumentTypeError, match="no permission"):
            patch.setattr(os, "access", lambda of, mode: not (str(of) == str(path) and mode == os.W_OK))
            cli.output_file(asked)
