"""Pretraining on processes of mpirun, real ones, on this machine."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from minimoe import files, pretrain
from minimoe.training import parallel
from tests.commands import bits, command, lines, records, steps_done

pytest.importorskip("mpi4py", reason="mpi4py is not installed: pip install -e '.[mpi]'")
MPIRUN = shutil.which("mpirun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
if not MPIRUN or "Open MPI" not in subprocess.run([MPIRUN, "--version"], capture_output=True, text=True).stdout:
    pytest.skip("there is no mpirun of Open MPI", allow_module_level=True)

AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}    # the machine of a test may know no other user
PRETRAIN = "-m", "minimoe.pretrain", "--preset", "micro", "--steps", "20", "--threads", "1", "--out"


def start(ranks, *arguments):
    """Python with these arguments, on so many processes."""
    command = [MPIRUN, "--oversubscribe", "-n", str(ranks), sys.executable, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | AS_ROOT,
                            cwd=Path(__file__).parents[1], start_new_session=True)


def finish(ranks, *arguments):
    """Its exit code, and what it printed and told."""
    process = start(ranks, *arguments)
    try:
        printed, told = process.communicate(timeout=300)
    finally:
        process.kill()
    return process.returncode, printed, told


if (tried := finish(2, "-c", "from mpi4py import MPI"))[0]:
    pytest.skip(f"mpirun does not work on this machine: {tried[2][-500:]}", allow_module_level=True)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What one process makes of the run."""
    out = tmp_path_factory.mktemp("one") / "run"
    subprocess.run([sys.executable, *PRETRAIN, out], check=True, capture_output=True, cwd=Path(__file__).parents[1])
    return out


@pytest.mark.parametrize("ranks", [2, 3])
def test_processes_agree_with_one_and_repeat_to_the_bit(ranks, alone, tmp_path):
    for name in "first", "again":
        code, printed, told = finish(ranks, *PRETRAIN, tmp_path / name)
        assert code == 0, told
        assert printed.count("loss  solved") == 1                         # one of them tells
    assert bits(tmp_path / "first" / "last") == bits(tmp_path / "again" / "last")
    assert records(tmp_path / "first") == records(tmp_path / "again")

    expected, found = (load_file(out / "last" / "model.safetensors") for out in (alone, tmp_path / "first"))
    blocks = max(int(name.split(".")[1]) for name in expected if name.startswith("blocks."))
    noise = {"blocks.0.read", f"blocks.{blocks}.write"}                   # their gradient is zero: what moves them is rounding
    assert max(np.abs(found[name] - w).max() for name, w in expected.items() if name not in noise) < 1e-6
    for mine, one in zip(lines(tmp_path / "first" / "metrics.jsonl"), lines(alone / "metrics.jsonl"), strict=True):
        assert mine["expert_load"] == one["expert_load"]
        for name in "loss", "balance_loss", "gradient_norm":
            assert abs(mine[name] / one[name] - 1) < 1e-6


def test_two_processes_are_one_that_adds_in_their_order(tmp_path, monkeypatch):
    """At a size where the runs of one and of two part after some twenty steps: the order of the sum is all that differs."""
    nano = "--preset", "nano", "--steps", "30", "--save-at", "", "--threads", "1", "--out"
    code, _, told = finish(2, "-m", "minimoe.pretrain", *nano, tmp_path / "two")
    assert code == 0, told

    def gradients(self, compute, microbatches):
        halves = []
        for half in microbatches[:2], microbatches[2:]:
            total, results = whole(self, compute, half)
            halves.append(({p: g.copy() for p, g in total.items()}, results))
        (first, early), (second, late) = halves
        return {p: g + second[p] for p, g in first.items()}, early + late

    whole = parallel.Workers.gradients
    monkeypatch.setattr(parallel.Workers, "gradients", gradients)
    assert command(pretrain, monkeypatch, *nano, tmp_path / "one") == 0
    assert bits(tmp_path / "one" / "last") == bits(tmp_path / "two" / "last")
    assert records(tmp_path / "one") == records(tmp_path / "two")


def test_a_dead_process_ends_the_run_which_can_be_gone_on_with(tmp_path):
    out = tmp_path / "run"
    long = [*PRETRAIN, out, "--steps", "100000"]
    process = start(2, *long)
    while not (out / "metrics.jsonl").exists() or len(lines(out / "metrics.jsonl")) < 30:
        assert process.poll() is None
        time.sleep(0.1)
    ranks = subprocess.run(["pgrep", "-f", f"^{sys.executable} .*{out}"], capture_output=True, text=True).stdout.split()
    os.kill(int(ranks[-1]), signal.SIGKILL)
    _, told = process.communicate(timeout=300)
    assert process.returncode != 0 and "signal 9" in told
    done = steps_done(out)
    assert done >= 20

    code, _, told = finish(2, *PRETRAIN[:-1], "--resume", "--out", out, "--steps", done + 5)
    assert code == 0, told
    assert [line["step"] for line in lines(out / "metrics.jsonl")] == list(range(1, done + 6))


def test_an_error_in_one_process_ends_all(tmp_path):
    """The other would wait for it for ever."""
    code = f"""
from minimoe import cli, pretrain
from minimoe.training import parallel

def fail(self, here):
    if parallel.RANK == 1:
        raise MemoryError
    return parallel.communicator().allreduce(here)

parallel.Workers.any = fail
import sys
sys.argv = ["pretrain", {', '.join(map(repr, PRETRAIN[2:]))}, {str(tmp_path / 'run')!r}]
cli.run(pretrain.main)
"""
    status, _, told = finish(2, "-c", code)
    assert status == 2 and "out of memory" in told


def test_an_error_before_the_first_step_ends_all_too(tmp_path):
    """Rank 0 finds the folder in use; the other has come further by then."""
    with files.alone(tmp_path / "run"):
        code, _, told = finish(2, *PRETRAIN, tmp_path / "run")
    assert code == 2 and "another process is writing" in told


def test_processes_of_another_mpi_are_refused(tmp_path):
    """Where mpi4py knows nothing of this mpirun, each process would train on its part alone."""
    environment = os.environ | {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    done = subprocess.run([sys.executable, *PRETRAIN, tmp_path / "run"], capture_output=True, text=True, env=environment,
                          cwd=Path(__file__).parents[1])
    assert done.returncode == 2 and "mpi4py sees 1: it was built for another MPI" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_more_processes_than_parts_are_refused(tmp_path):
    for options, parts in [([], 4), (["--batch-size", "2"], 2)]:
        code, printed, told = finish(parts + 1, *PRETRAIN, tmp_path / "run", *options)
        assert code == 2 and printed == "" and f"mpirun -n {parts + 1}: a batch has {parts} parts" in told
    assert list(tmp_path.iterdir()) == []


def test_rloo_is_of_one_process(tmp_path):
    code, _, told = finish(2, "-m", "minimoe.rloo", "--base", tmp_path, "--out", tmp_path / "run")
    assert code == 2 and "start it without mpirun" in told


def test_without_mpirun_there_is_one():
    assert (parallel.RANK, parallel.RANKS) == (0, 1)
