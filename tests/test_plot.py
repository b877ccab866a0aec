import errno
import json
import re
import sys
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from minimoe import plot, pretrain, rloo
from minimoe.coding.scoring import DEV_TASKS, bootstrap
from minimoe.coding.tasks import FAMILIES
from tests import commands
from tests.bad_checkpoints import nobody

command, refused = partial(commands.command, plot), partial(commands.refused, plot)
RESULTS = Path(__file__).parents[1] / "checkpoints" / "results"


def dev(rng):
    return {family: int(rng.integers(0, DEV_TASKS + 1)) for family in FAMILIES}


def pretraining(steps, seed=0, blocks=3, experts=4):
    """Lines such as minimoe.pretrain writes; every fifth has dev results."""
    rng, lines = np.random.default_rng(seed), []
    for step in range(1, steps + 1):
        load = rng.dirichlet(np.ones(experts), blocks).round(4).tolist()
        lines.append({"step": step, "loss": 5 / step + rng.random(), "gradient_norm": 3 * rng.random(), "expert_load": load})
        lines[-1] |= {"dev": dev(rng)} if step % 5 == 0 else {}
    return lines


def rl(steps, seed=0, replay=True):
    """Lines such as minimoe.rloo writes; every fifth has dev results."""
    rng, lines = np.random.default_rng(seed), []
    for step in range(1, steps + 1):
        passed, failed, ended, cut = rng.multinomial(64, [0.4, 0.3, 0.2, 0.1]) / 64
        record = {"step": step, "passed": passed, "failed": failed, "invalid": ended + cut, "truncated": cut}
        record |= {"reward": passed - 0.1 * (ended + cut), "kl": rng.normal(), "entropy": rng.random()}
        record |= {"zero_spread": int(rng.random() < 0.3), "family": ("even", "double")[int(rng.random() < 0.5)]}
        lines.append(record | ({"replay_loss": rng.random()} if replay else {}) | ({"dev": dev(rng)} if step % 5 == 0 else {}))
    return lines


def save(folder, lines, **state):
    """A run's folder with these lines, records or text, and `state` in its run.json."""
    (folder / "last").mkdir(parents=True)
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text)
    (folder / "last" / "run.json").write_text(json.dumps({"step": len(lines), "updates": len(lines)} | state))
    return folder


@pytest.fixture
def drawn(monkeypatch):
    """Call it with runs: the figures that the command draws of them."""
    pytest.importorskip("matplotlib")

    def run(*paths):
        kept = {}
        monkeypatch.setattr(plot, "write", lambda figures, out, formats: kept.update(figures))
        assert command(monkeypatch, *paths) == 0
        return kept

    return run


def points(ax):
    """The dots and the mean of each run in axes, as [(x, y), ...] each, by name."""
    lines = [line for line in ax.get_lines() if len(line.get_xdata()) and not line.get_label().startswith("longer")]
    return {mean.get_label(): (dots.get_xydata(), mean.get_xydata()) for dots, mean in zip(lines[::2], lines[1::2], strict=True)}


def mean_around(values):
    """The mean of the numbers among the nine around each, by a plain loop."""
    around = [values[max(0, i - plot.WINDOW // 2) : i + plot.WINDOW // 2 + 1] for i in range(len(values))]
    return [np.mean([value for value in part if np.isfinite(value)] or np.nan) for part in around]


CURVES = {
    "pretrain-loss": "loss", "pretrain-gradient": "gradient_norm", "rloo-reward": "reward", "rloo-kl": "kl",
    "rloo-entropy": "entropy", "rloo-replay-loss": "replay_loss", "rloo-zero-spread": "zero_spread",
}


def test_curves_are_the_metrics_and_their_moving_means(tmp_path, drawn):
    lines = {"pretrain": pretraining(30), "rloo": rl(30)}
    lines["pretrain"][7]["loss"] = lines["rloo"][9]["kl"] = None          # NaN, as it is written
    del lines["pretrain"][10], lines["rloo"][0]["entropy"]
    figures = drawn(*(save(tmp_path / kind, lines[kind]) for kind in lines))
    for name, metric in CURVES.items():
        kind = name.split("-")[0]
        expected = np.array([(line["step"], line.get(metric)) for line in lines[kind]], float)
        ((dots, mean),) = points(figures[name].axes[0]).values()
        np.testing.assert_array_equal(dots, expected)
        np.testing.assert_array_equal(mean[:, 0], expected[:, 0])
        np.testing.assert_allclose(mean[:, 1], mean_around(expected[:, 1]), rtol=1e-12)
        assert figures[name].axes[0].get_yscale() == ("log" if kind == "pretrain" else "linear")
    (clip,) = [line for line in figures["pretrain-gradient"].axes[0].get_lines() if line.get_label().startswith("longer")]
    assert set(clip.get_ydata()) == {pretrain.CLIP}


def test_every_other_figure_is_the_metrics(tmp_path, drawn):
    lines = {"pretrain": pretraining(12), "rloo": rl(40)}
    before = dev(np.random.default_rng(5))
    figures = drawn(save(tmp_path / "pretrain", lines["pretrain"]), save(tmp_path / "rloo", lines["rloo"], dev={"0": before}))

    left, right, _ = figures["pretrain-experts"].axes
    load = 4 * np.array([line["expert_load"] for line in lines["pretrain"]])
    np.testing.assert_array_equal(left.collections[0].get_array(), load.max(axis=2).T)
    np.testing.assert_array_equal(left.collections[0].get_coordinates()[0, :, 0], np.arange(13) + 0.5)
    np.testing.assert_array_equal(right.collections[0].get_array(), load[-1])

    layers = [stairs.get_data() for stairs in figures["rloo-verdicts"].axes[0].patches]
    heights = [layer.values - layer.baseline for layer in layers]
    names = "passed", "failed", "invalid", "truncated"
    passed, failed, invalid, cut = (np.array([line[name] for line in lines["rloo"]]) for name in names)
    np.testing.assert_allclose(heights, [passed, failed, invalid - cut, cut], atol=1e-12)
    np.testing.assert_allclose(layers[-1].values, 1)

    axes = figures["rloo-reward-by-family"].axes
    assert [ax.get_title(loc="left") for ax in axes] == ["double", "even"]
    for ax, family in zip(axes, ("double", "even"), strict=True):
        expected = [(line["step"], line["reward"]) for line in lines["rloo"] if line["family"] == family]
        np.testing.assert_array_equal(points(ax)["rloo"][0], expected)

    looks = [(line["step"], line["dev"]) for line in lines["rloo"] if "dev" in line]
    (line,) = figures["rloo-solved"].axes[0].get_lines()
    np.testing.assert_array_equal(line.get_xydata(), [(step, sum(one.values())) for step, one in [(0, before), *looks]])
    ax = figures["rloo-solved-by-family"].axes[0]
    labelled = {line.get_label(): line for line in ax.get_lines() if not line.get_label().startswith("_")}
    assert list(labelled) == ["rloo, group 0", "rloo, group 40"]
    for solved, line, intervals in zip((before, looks[-1][1]), labelled.values(), ax.collections, strict=True):
        np.testing.assert_allclose(line.get_xdata()[:-1], [solved[family] / 8 for family in FAMILIES])
        assert line.get_xdata()[-1] == sum(solved.values()) / 64
        for family, segment in zip(FAMILIES, intervals.get_segments()[:-1], strict=True):
            expected = bootstrap([1] * solved[family] + [0] * (8 - solved[family]))
            assert tuple(segment[:, 0]) == pytest.approx(expected)
    assert labelled["rloo, group 0"].get_markerfacecolor() == "white" != labelled["rloo, group 40"].get_markerfacecolor()


def test_results_are_the_figures_of_evaluate(tmp_path, drawn):
    before, after = (json.loads((RESULTS / f"{name}-0.json").read_text())["after"] for name in ("before", "both"))
    (tmp_path / "compared.json").write_text(json.dumps({"split": "confirm", "before": before, "after": after}))
    figures = drawn(RESULTS / "rl-0.json", tmp_path / "compared.json")
    assert list(figures) == ["results-solved-by-family"]
    ax = figures["results-solved-by-family"].axes[0]
    labelled = {line.get_label(): line for line in ax.get_lines() if not line.get_label().startswith("_")}
    assert list(labelled) == ["rl-0", "compared, before", "compared, after"]
    rl_alone = json.loads((RESULTS / "rl-0.json").read_text())["after"]
    for result, line, intervals in zip((rl_alone, before, after), labelled.values(), ax.collections, strict=True):
        shares = [result["figures"][row]["greedy"] / result["figures"][row]["tasks"] for row in (*FAMILIES, "all")]
        np.testing.assert_allclose(line.get_xdata(), shares)
        interval = result["figures"]["greedy_interval"]
        assert tuple(64 * intervals.get_segments()[-1][:, 0]) == pytest.approx((interval["low"], interval["high"]))
    assert [tick.get_text() for tick in ax.get_yticklabels()] == [*FAMILIES, "all"]


def test_runs_share_a_figure_under_the_shortest_names(tmp_path, drawn):
    lines = [rl(6, seed=1), rl(9, seed=2, replay=False)]
    lines[1] = [line | {"family": "total"} for line in lines[1]]
    paths = [save(tmp_path / name / "run", one) for name, one in zip(("a", "b"), lines, strict=True)]
    figures = drawn(*paths, save(tmp_path / "a" / "other", pretraining(3)))
    both = points(figures["rloo-reward"].axes[0])
    assert list(both) == ["a/run", "b/run"]
    for (dots, _), one in zip(both.values(), lines, strict=True):
        np.testing.assert_array_equal(dots, [(line["step"], line["reward"]) for line in one])
    colors = [line.get_color() for line in figures["rloo-reward"].axes[0].get_lines()]
    assert colors[0] == colors[1] != colors[2] == colors[3]
    for name, shown in [("rloo-reward", ["a/run", "b/run"]), ("rloo-replay-loss", ["a/run"]), ("pretrain-loss", ["a/other"])]:
        assert [text.get_text() for text in figures[name].legends[0].get_texts()] == shown
    assert [ax.get_title(loc="left") for ax in figures["rloo-verdicts"].axes] == ["a/run", "b/run"]
    assert [list(points(ax)) for ax in figures["rloo-reward-by-family"].axes] == [["a/run"], ["a/run"], ["b/run"]]


def test_names_that_fit_a_figure():
    assert plot.short_names([Path("a/x\n\udcff\x1b"), Path("a/y")]) == ["x\\n\\udcff\\x1b", "y"]
    assert plot.short_names([Path("a/_x"), Path("a/y")]) == ["a/_x", "a/y"]
    assert plot.short_names([Path("/x"), Path("/y/x"), Path("/y/x/../z")]) == ["/x", "y/x", "y/z"]
    assert plot.short_names([Path("begins" + "x" * 99 + "ends")]) == ["begins" + "x" * 14 + "…" + "x" * 15 + "ends"]


def test_lines_cut_short_are_left_out_and_odd_values_are_gaps(tmp_path, drawn):
    lines = pretraining(6)
    lines[1]["loss"], lines[2]["loss"], lines[3]["loss"] = "x", [1.0], 10**400
    lines[4]["expert_load"], lines[5]["dev"] = [[0.5], [0.5, 0.5]], dict.fromkeys(FAMILIES, 9)
    cut = [json.dumps(one)[:40] for one in pretraining(2)]
    strange = ["[]", "7", "null", '"step"', '{"step": null}', '{"step": "x"}', '{"step": -1}', '{"step": NaN}', "[" * 9999, "\0"]
    step, too_many = '{"step": 7, "loss": 1.5}', '{"step": %s}' % ("9" * 400)
    figures = drawn(save(tmp_path / "run", [*cut, *strange, too_many, *lines, step, step[:-1]]))
    assert set(figures) == {name for name in plot.FIGURES if name.startswith("pretrain")}
    ((dots, _),) = points(figures["pretrain-loss"].axes[0]).values()
    first, gap = lines[0]["loss"], np.nan
    np.testing.assert_array_equal(dots[:, 1], [first, gap, gap, gap, lines[4]["loss"], lines[5]["loss"], 1.5])
    shown = figures["pretrain-experts"].axes[0].collections[0].get_array()
    np.testing.assert_array_equal(np.ma.getmaskarray(shown).any(axis=0), [False] * 4 + [True, False, True])
    assert len(figures["pretrain-solved"].axes[0].get_lines()[0].get_xdata()) == 1    # not the 9 of 8


def test_a_run_without_a_family_has_no_figure_by_family(tmp_path, drawn):
    figures = drawn(save(tmp_path / "run", [line | {"family": ["even"]} for line in rl(3)]))
    assert set(figures) == {name for name in plot.FIGURES if name.startswith("rloo")} - {"rloo-reward-by-family"} - \
        {"rloo-solved", "rloo-solved-by-family"}


def test_real_runs_have_every_figure(tmp_path, monkeypatch, drawn):
    base, out = tmp_path / "base", tmp_path / "rloo"
    assert commands.command(pretrain, monkeypatch, "--preset", "micro", "--steps", 2, "--save-at", 2, "--out", base) == 0
    small = "--groups", 2, "--save-at", "", "--group-size", 4, "--max-new-tokens", 4
    assert commands.command(rloo, monkeypatch, "--base", base / "step-0002", *small, "--out", out) == 0
    figures = drawn(base, out)
    assert set(figures) == {name for name in plot.FIGURES if not name.startswith("results")}
    for folder, name, metric in [(base, "pretrain-loss", "loss"), (out, "rloo-reward", "reward")]:
        ((dots, _),) = points(figures[name].axes[0]).values()
        np.testing.assert_array_equal(dots, [(line["step"], line[metric]) for line in commands.lines(folder / "metrics.jsonl")])
    for name, first in [("pretrain-solved", 2), ("rloo-solved", 0)]:
        assert figures[name].axes[0].get_lines()[0].get_xdata()[0] == first


@pytest.mark.parametrize("lines", [pretraining(1), rl(1), [one | {"kl": kl} for one, kl in zip(rl(4), (1.7e308, 0, 1, -1.7e308))]])
def test_a_single_step_and_numbers_near_infinity_draw(tmp_path, monkeypatch, drawn, lines):
    run, write = save(tmp_path / "_$run_$^ \n日本", lines), plot.write
    chosen = "pretrain-loss", "pretrain-experts", "rloo-kl", "rloo-verdicts"
    monkeypatch.setattr(plot, "FIGURES", {name: plot.FIGURES[name] for name in chosen})
    for fig in drawn(run).values():
        assert all(ax.has_data() for ax in fig.axes)
        mean = [line for line in fig.axes[0].get_lines() if line.get_label() != "_child0"]
        assert all(line.get_marker() == ("o" if len(lines) == 1 else "") for line in mean)    # a line of one point is not seen
    monkeypatch.setattr(plot, "write", write)
    assert command(monkeypatch, run, "--out", tmp_path / "out", "--format", "svg") == 0
    assert len(list((tmp_path / "out").iterdir())) == 2


def test_files(tmp_path, monkeypatch, capsys):
    matplotlib = pytest.importorskip("matplotlib")
    from matplotlib.image import imread

    monkeypatch.setitem(matplotlib.rcParams, "figure.facecolor", "black")    # the user's own style
    arguments = RESULTS / "rl-0.json", save(tmp_path / "run", pretraining(2)), "--out"
    monkeypatch.setattr(plot, "FIGURES", {name: plot.FIGURES[name] for name in ("pretrain-experts", "results-solved-by-family")})
    assert command(monkeypatch, *arguments, tmp_path / "deep" / "er") == 0
    files = {path.name: path.read_bytes() for path in (tmp_path / "deep" / "er").iterdir()}
    assert set(files) == {f"{name}.{kind}" for name in plot.FIGURES for kind in ("png", "svg")}
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == f"{tmp_path / 'deep' / 'er'}:"
    assert [line.split()[:3] for line in printed[1:]] == [[name, "png", "svg"] for name in plot.FIGURES]
    for name, content in files.items():
        if name.endswith("svg"):
            assert ElementTree.fromstring(content).tag == "{http://www.w3.org/2000/svg}svg"
        else:
            image = imread(tmp_path / "deep" / "er" / name)
            assert image.shape[1] == 1400 and (image[..., 3] == 1).all() and (image[0, 0] == 1).all()    # opaque, white
    (tmp_path / "deep" / "er" / "mine").write_text("mine")
    assert command(monkeypatch, *arguments, tmp_path / "deep" / "er", "--format", "svg") == 0    # over what is there
    assert {path.name for path in (tmp_path / "deep" / "er").iterdir()} == {*files, "mine"}
    assert all((tmp_path / "deep" / "er" / name).read_bytes() == content for name, content in files.items())    # the same


def test_a_failing_disk_leaves_nothing_half_written(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    def savefig(self, path, **options):
        Path(path).write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", savefig)
    assert "No space left" in refused(monkeypatch, capsys, RESULTS / "rl-0.json", "--out", tmp_path)
    assert not list(tmp_path.iterdir())


def test_out_must_be_a_folder_that_can_be_written(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    (tmp_path / "file").write_text("mine")
    tmp_path.chmod(0o555)
    for parent in tmp_path.parents[:2]:
        parent.chmod(0o755)
    results = json.loads((RESULTS / "rl-0.json").read_text())
    monkeypatch.setattr(plot, "read_json", lambda path: results)          # whatever nobody may read
    with nobody():
        for out in tmp_path, tmp_path / "new", tmp_path / "file", tmp_path / "file" / "new", tmp_path / ("x" * 300):
            assert str(out) in refused(monkeypatch, capsys, "results.json", "--out", out)
        assert "is a file" in refused(monkeypatch, capsys, "results.json", "--out", tmp_path / "file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"] and (tmp_path / "file").read_text() == "mine"


BAD = {    # what stands at "run" -> what the line says
    "missing": (lambda run: None, "does not exist"),
    "no metrics": (lambda run: run.mkdir(), "no metrics.jsonl"),
    "empty": (lambda run: save(run, []), "no whole line"),
    "cut": (lambda run: save(run, ['{"step": 1, "lo']), "no whole line"),
    "binary": (lambda run: save(run, []) and (run / "metrics.jsonl").write_bytes(bytes(range(256)) * 9), "no whole line"),
    "unknown": (lambda run: save(run, [{"step": 1, "accuracy": 1}]), "neither loss nor reward"),
    "no number": (lambda run: save(run, [{"step": 1, "loss": None}]), "nothing to draw"),
    "no loads": (lambda run: save(run, [{"step": 1, "loss": None, "expert_load": 0.5}]), "nothing to draw"),
    "no last": (lambda run: save(run, pretraining(2)) and (run / "last" / "run.json").unlink(), "run.json"),
    "damaged last": (lambda run: save(run, pretraining(2)) and (run / "last" / "run.json").write_text("{"), "run.json"),
    "no JSON": (lambda run: run.write_text("{"), "not JSON"),
    "other JSON": (lambda run: run.write_text('{"figures": {}}'), "neither a run's folder nor a file of minimoe.evaluate"),
    "list": (lambda run: run.write_text("[]"), "object"),
    "no models": (lambda run: run.write_text('{"after": {"models": []}}'), "minimoe.evaluate --json"),
    "no tasks": (lambda run: run.write_text('{"after": {"models": [{"tasks": []}]}}'), "minimoe.evaluate --json"),
    "odd tasks": (lambda run: run.write_text('{"after": {"models": [{"tasks": [{"name": 1, "greedy": 2}]}]}}'), "minimoe.evaluate"),
    "other tasks": (lambda run: run.write_text(mixed()), "minimoe.evaluate --json"),
}


def mixed():
    """Results of two models whose tasks do not agree."""
    result = json.loads((RESULTS / "rl-0.json").read_text())
    result["after"]["models"][1]["tasks"].reverse()
    return json.dumps(result)


def test_the_figure_of_the_readme_is_of_the_receipts(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    reproduce = (RESULTS.parent / "reproduce.sh").read_text()
    names = [tmp_path / name for name in ("before.json", "after RL with replay.json")]
    for name, receipt in zip(names, ("before-0", "both-0")):
        assert receipt in reproduce and name.name in reproduce
        name.write_bytes((RESULTS / f"{receipt}.json").read_bytes())
    assert command(monkeypatch, *names, "--out", tmp_path / "out", "--format", "svg") == 0
    drawn = "results-solved-by-family.svg"
    made, there = (marks(folder / drawn) for folder in (tmp_path / "out", RESULTS))
    np.testing.assert_allclose(made, there, atol=0.01)


def marks(path):
    """Where the marks of an SVG are, each axis from 0 to 1."""
    found = re.findall(r'<use xlink:href="#m\w+" x="([\d.]+)" y="([\d.]+)"', path.read_text())
    places = np.array(found, float)
    return (places - places.min(axis=0)) / np.ptp(places, axis=0)


@pytest.mark.parametrize(("make", "says"), BAD.values(), ids=BAD)
def test_what_is_no_run_is_refused(tmp_path, monkeypatch, capsys, make, says):
    pytest.importorskip("matplotlib")
    make(tmp_path / "run")
    assert says in refused(monkeypatch, capsys, tmp_path / "run", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_bad_arguments(tmp_path, monkeypatch, capsys):
    assert "RUN" in refused(monkeypatch, capsys)
    for formats in "", "jpg", "png,", "png svg", "PNG":
        assert "--format" in refused(monkeypatch, capsys, RESULTS / "rl-0.json", "--format", formats)
    pytest.importorskip("matplotlib")
    same = RESULTS / "rl-0.json", RESULTS / ".." / "results" / "rl-0.json"
    assert f"{same[1]} is given twice" in refused(monkeypatch, capsys, *same)
    monkeypatch.setattr(plot, "LOOKS", plot.LOOKS[:2])
    assert "more than 2 runs" in refused(monkeypatch, capsys, *(RESULTS / f"rl-{seed}.json" for seed in range(3)))


def test_without_matplotlib(tmp_path, monkeypatch, capsys):
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)                  # as if it were not installed
    line = refused(monkeypatch, capsys, RESULTS / "rl-0.json", "--out", tmp_path / "out")
    assert "figures need matplotlib" in line and line.endswith("run: pip install matplotlib\n")
    assert not (tmp_path / "out").exists()
    assert command(monkeypatch, "--help") == 0 and "metrics" not in capsys.readouterr().err
