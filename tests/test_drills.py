"""Short versions of the drills; `python -m tests.drills` has the long ones."""

import os

import pytest

from tests import drills, kills
from tests.commands import command
from tests.drills import Tally


def run(drill, count, **options):
    tally = Tally()
    drill(tally, count, 1, **options)
    assert not tally.failures, tally.table()
    return tally


def test_any_change_to_the_disk_may_fail():
    assert run(drills.writes, 8).tried.total() == 8


def test_bad_checkpoints_are_refused():
    tally = run(drills.checkpoints, 300)
    assert tally.tried.total() == 300 and len(tally.tried) == 28


def test_bad_arguments_are_refused():
    assert len(run(drills.arguments, 250).tried) == 8


def test_what_must_hold_a_million_times():
    assert run(drills.verifier, 2000).tried["invalid"] > 1000
    assert run(drills.agreement, 2000).tried["value"] > 500
    assert run(drills.generations, 40).tried.total() >= 40
    assert run(drills.load, 2).tried["group"] == 2


@pytest.mark.skipif(os.name == "nt", reason="no process can be sent Ctrl-C alone there")
def test_killed_runs_go_on(monkeypatch):
    monkeypatch.setattr(kills, "PRETRAIN", ["--steps", "4", "--save-at", "2", "--batch-size", "1", "--sequence-length", "8"])
    monkeypatch.setattr(kills, "RLOO", ["--groups", "2", "--save-at", "1", "--group-size", "2", "--max-new-tokens", "1"])
    assert run(kills.kills, 2, preset="micro").tried.total() == 2


def test_a_drill_that_fails_is_told_of(monkeypatch, tmp_path, capsys):
    def drill(tally, count=3, seed=0):
        """Try nothing."""
        for i in range(count):
            tally.record("a kind", f"case {i}", "bad luck" if i == seed else "")

    monkeypatch.setattr(drills, "DRILLS", {"nothing": drill})
    assert command(drills, monkeypatch, "nothing", "--json", tmp_path / "drill.json") == 1
    printed = capsys.readouterr().out
    assert "a kind" in printed and "case 0: bad luck" in printed and printed.endswith("3 tried, 1 failed\n")
    assert '"case 0: bad luck"' in (tmp_path / "drill.json").read_text()
    assert command(drills, monkeypatch, "nothing", "--seed", 9, "--count", 5) == 0
    assert command(drills, monkeypatch, "everything") == 2
