import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from decimal import Decimal
from functools import partial
from urllib.parse import unquote

import numpy as np
import pytest

from minimoe import inspect as inspecting
from minimoe.config import PRESETS
from minimoe.generate import generate
from minimoe.gradcheck import randomize
from minimoe.inspect import TEMPLATE, linear_weights, name, sparse_weights
from minimoe.layers.linear_attention import LinearAttention
from minimoe.layers.softmax import softmax
from minimoe.model import MiniMoE
from minimoe.tokenizer import BOS, EOS, FIRST_BYTE, PAD, completion_text, encode
from tests import commands

command, refused = partial(commands.command, inspecting), partial(commands.refused, inspecting)
CONFIG = replace(PRESETS["micro"], blocks=5, context=80, streams=3)
PROMPT = "</script><script>alert(1)</script>\n\0\u2028é <!--"
IDS = [BOS] + encode(PROMPT)
NEW = 9
FOLDERS = "a", "<img src=x onerror=alert(2)>"    # a checkpoint from a stranger, and one to compare with
CLOSE = partial(np.testing.assert_allclose, rtol=6e-4, atol=1e-300)      # four digits


def make(seed, config=CONFIG):
    return randomize(MiniMoE(config, np.random.default_rng(0), np.float64), np.random.default_rng(seed))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inspect")
    make(1).save_pretrained(folder / FOLDERS[0])
    other = make(1)
    for _, p in other.named_parameters():
        p.data = p.data + 0.1 * np.random.default_rng(2).standard_normal(p.data.shape)
    other.save_pretrained(folder / FOLDERS[1])
    make(1, replace(CONFIG, experts=6)).save_pretrained(folder / "larger")
    if hasattr(os, "mkfifo"):
        os.mkfifo(folder / "pipe")
    return folder


@pytest.fixture(scope="module")
def page(folder):
    """The page of the first model compared with the second, as the command writes it."""
    with pytest.MonkeyPatch.context() as patch:
        arguments = [folder / FOLDERS[0], PROMPT, "--compare", folder / FOLDERS[1]]
        assert command(patch, *arguments, "--max-new-tokens", NEW, "--out", folder / "page.html") == 0
    return (folder / "page.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def data(page):
    return json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.S)[1])


@pytest.fixture(scope="module")
def models(folder):
    return [MiniMoE.from_pretrained(folder / name) for name in FOLDERS]


@pytest.fixture(scope="module")
def runs(models, data):
    """logits (T,V) and saved of each model, on the tokens of the page."""
    runs = [model.forward(np.array([data["tokens"]])) for model in models]
    return [(logits[0], saved) for logits, saved in runs]


def test_the_tokens_are_the_prompt_and_its_greedy_completion(data, models):
    completions = [generate(model, IDS, NEW)[0] for model in models]
    assert data["tokens"] == IDS + completions[0] and data["prompt"] == len(IDS)
    assert completions[0] != completions[1] and len(completions[0]) > 3   # or the page would show little
    assert [one["completion"] for one in data["models"]] == [completion_text(ids) for ids in completions]
    top = data["models"][0]["next"]["top"]
    assert [top[t][0] for t in range(len(IDS) - 1, len(data["tokens"]) - 1)] == completions[0]


@pytest.mark.parametrize("m", [0, 1])
def test_what_is_expected_next_is_the_softmax_of_the_logits(data, runs, m):
    logits, tokens, shown = runs[m][0].astype(np.float64), data["tokens"], data["models"][m]["next"]
    p = softmax(logits)
    for t in range(len(tokens)):
        assert shown["top"][t] == sorted(range(len(p[t])), key=lambda token: (-logits[t, token], token))[:10]
        CLOSE(shown["p"][t], p[t, shown["top"][t]])
    came = shown["came"]
    assert [came[key][0] for key in came] == [None] * 3 and all(len(came[key]) == len(tokens) for key in came)
    for t, token in enumerate(tokens[1:], start=1):
        CLOSE([came["p"][t], came["log_p"][t]], [p[t - 1, token], np.log(p[t - 1, token])])
        assert came["rank"][t] == 1 + np.sum(logits[t - 1] > logits[t - 1, token])


@pytest.mark.parametrize("m", [0, 1])
def test_the_experts_are_those_that_the_router_chose(data, runs, m):
    blocks = data["models"][m]["experts"]
    assert len(blocks) == CONFIG.blocks
    for shown, saved in zip(blocks, runs[m][1].blocks, strict=True):
        np.testing.assert_array_equal(shown["chosen"], saved.moe.chosen)
        CLOSE(shown["weights"], saved.moe.weights)
        CLOSE(shown["probs"], saved.moe.probs)


def by_hand(model, ids):
    """Drive the blocks one by one, as `MiniMoE.forward` does: the streams (S,T,D) before and after each, and each attention's output."""
    x, _ = model.embedding.forward(np.array([ids]))
    streams, outputs = [np.stack([x] * model.config.streams)], []
    for block in model.blocks:
        x, _ = block.read_streams.forward(streams[-1])
        n, _ = block.attention_norm.forward(x)
        outputs.append(block.attention.forward(n)[0][0])                  # (T,D)
        streams.append(block.forward(streams[-1])[0])
    return [each[:, 0] for each in streams], outputs


def test_what_attention_reads_is_what_it_puts_out():
    """The weights of every head, times its values, through the layer's own last matrix, are the layer's output."""
    model, ids = make(3), np.random.default_rng(0).integers(4, 260, 40)
    _, saved = model.forward(ids[None])
    for block, past, y in zip(model.blocks, saved.blocks, by_hand(model, ids)[1], strict=True):
        if isinstance(block.attention, LinearAttention):
            chunks = past.attention[3]
            assert len(chunks) > 2
            weights, v = linear_weights(past.attention), np.concatenate([chunk[3] for chunk in chunks], axis=2)
            assert (weights < -1e-6).any()                                # rotation turned some the other way
        else:
            weights, v = sparse_weights(past.attention), past.attention[4]
            kept = np.sum(~np.isnan(weights), axis=-1)
            np.testing.assert_array_equal(kept, [np.minimum(np.arange(40) + 1, CONFIG.sparse_top_k)] * CONFIG.heads)
            np.testing.assert_allclose(np.nansum(weights, axis=-1), 1, atol=1e-12)
            weights = np.nan_to_num(weights)
        assert not np.triu(weights, 1).any()
        attended = (weights @ v[0]).swapaxes(0, 1)                        # (T,H,K)
        np.testing.assert_allclose(block.attention.out.forward(attended.reshape(1, 40, -1))[0][0], y, atol=1e-9)


def test_the_weights_of_attention(data, models, runs):
    sparse = [(b + 1) % CONFIG.sparse_every == 0 for b in range(CONFIG.blocks)]
    assert [shown["kind"] for shown in data["attention"]] == ["sparse" if each else "linear" for each in sparse]
    for shown, past in zip(data["attention"], runs[0][1].blocks, strict=True):
        weights = (sparse_weights if shown["kind"] == "sparse" else linear_weights)(past.attention)
        for head, rows in zip(weights, shown["weights"], strict=True):
            for t, row in enumerate(rows):
                CLOSE(np.array(row, float), head[t, : t + 1])             # None is NaN
    kept = runs[0][1].blocks[3].attention[5][0, 1]
    assert [w is not None for w in data["attention"][3]["weights"][1][-1]] == kept[-1].tolist() and not kept[-1].all()


def test_how_the_streams_part(data, models):
    shown, (streams, _) = data["streams"], by_hand(models[0], data["tokens"])
    for way in "read", "write":
        CLOSE(shown[way], [softmax(getattr(block, way).data) for block in models[0].blocks])
    for level, each in enumerate(streams):
        for t in range(0, len(data["tokens"]), 7):
            mean = each[:, t].mean(axis=0)
            distances = [np.linalg.norm(stream - mean) / np.linalg.norm(mean) for stream in each[:, t]]
            np.testing.assert_allclose(shown["distance"][t][level], distances, rtol=6e-4, atol=1e-6)
            units = [stream / np.linalg.norm(stream) for stream in each[:, t].astype(float)]
            angle = max(np.degrees(2 * np.arcsin(np.linalg.norm(a - b) / 2)) for a in units for b in units)
            np.testing.assert_allclose(shown["angle"][t][level], angle, rtol=6e-4, atol=1e-4)
    assert min(map(max, shown["angle"])) > 1                              # they do part


def test_the_names_of_ids():
    shown = {PAD: "PAD", BOS: "BOS", EOS: "EOS", 260: "id 260"}
    shown |= {FIRST_BYTE + byte: label for byte, label in zip(b"\n a\0~\x7f\xe9", ["⏎", "·", "a", "00", "~", "7f", "e9"], strict=True)}
    assert {token: name(token) for token in shown} == shown
    assert len({name(token) for token in range(300)}) == 300


def test_the_page_loads_nothing_and_no_text_gets_out_of_its_numbers(page, data):
    template = TEMPLATE.read_text(encoding="utf-8")
    before, after = template.split(inspecting.DATA)
    assert page.startswith(before) and page.endswith(after)
    inside = page[len(before) : len(page) - len(after)]
    assert inside.isascii() and not re.search("[<>&\n]", inside)
    assert [one["checkpoint"].rsplit(os.sep, 1)[-1] for one in data["models"]] == list(FOLDERS)
    assert "default-src 'none'" in template and template.count("<script") == 2
    loads = r"https?:(?!//www\.w3\.org/2000/svg\")|@import|(?<!-)\bsrc\b|\bhref\b|url\(|<link|<iframe|<img|\bfetch\(|XMLHttp|import\(|innerHTML"
    assert not re.findall(loads, template)


DRIVER = r"""
<script>
const outcome = {}, seen = name => { outcome[name] = {
  chosen: strip.flatMap((node, t) => node.getAttribute("aria-selected") === "true" ? [t] : []), now: $("now").textContent,
  likely: [...document.querySelectorAll(".likely")].map(table => [...table.rows].map(row => [...row.cells].map(cell => cell.textContent))),
  routes: [...document.querySelectorAll("#routes tr")].slice(1).map(row => [...row.cells].map(cell => cell.textContent)),
  framed: [...document.querySelectorAll("#routes tr")].slice(1).map(row => [...row.querySelectorAll(".taken")].map(cell => cell.cellIndex - 1)),
  told: [...document.querySelectorAll(".told")].map(node => node.textContent),
  opacity: Object.fromEntries(["sparse", "linear"].map(kind => [kind, [...$(kind).querySelectorAll("canvas")].map(canvas =>
    [...canvas.getContext("2d").getImageData(0, 0, T, 1).data].filter((_, i) => i % 4 === 3))])),
  classes: ["sparse", "linear"].map(kind => [...$(kind).querySelectorAll(".text .token")].map(node => node.className)),
  colours: strip.map(node => node.style.getPropertyValue("--w")), numbers: $("numbers").textContent,
  lines: [...document.querySelectorAll("#chart path[fill]")].map(path => path.getAttribute("d")),
} };
const pixels = canvas => range(T).map(t => range(17).map(row => [...canvas.getContext("2d").getImageData(t, row, 1, 1).data.slice(0, 3)].join()));
const told_at = (node, x) => {
  const { left, top } = node.getBoundingClientRect();
  node.dispatchEvent(new PointerEvent("pointermove", { clientX: left + x, clientY: top + 3 }));
  return $("tip").hidden ? null : $("tip").textContent;
};
const press = (node, key) => node.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
seen("linked");
strip[5].click(); seen("clicked");
press($("strip"), "ArrowRight"); seen("right");
press(document.body, "ArrowLeft"); seen("left");
press($("strip"), "End"); seen("end");
press($("strip"), "ArrowUp"); seen("up");
press($("strip"), "Home"); seen("home");
press(document.body, "End"); seen("not in the strip");
$("on").click(); $("on").click(); seen("on");
$("back").click(); seen("back");
const cell = grid[2].getBoundingClientRect();
grid[2].dispatchEvent(new MouseEvent("click", { bubbles: true, clientX: cell.left + cell.width * 30.5 / T, clientY: cell.top + 3 })); seen("cell");
$("linear").querySelectorAll("canvas")[4].click(); seen("head");
const select = $("sparse").querySelector("select");
select.value = 2; select.dispatchEvent(new Event("change")); press(select, "ArrowRight"); seen("select");
$("colours").children[1].click(); seen("change");
outcome.grid = grid.map(pixels);
outcome.palette = range(experts).map(expertColour); outcome.ink = colour("--ink");
outcome.written = strip.map(node => node.classList.contains("written"));
outcome.bars = [...document.querySelectorAll("#chart rect")].map(bar => +bar.getAttribute("height"));
const linear = $("linear").querySelectorAll("canvas")[4];
outcome.tips = [told_at(strip[6], 1), told_at(grid[1], cell.width * 6.5 / T), told_at(linear, cell.width * 6.5 / T), told_at(linear, cell.width * 40.5 / T)];
$("tip").hidden = true;
outcome.overflow = document.documentElement.scrollWidth - document.documentElement.clientWidth;
outcome.scripts = document.scripts.length; outcome.images = document.images.length;
outcome.completions = [...document.querySelectorAll("pre")].map(node => node.textContent);
setTimeout(() => {
  outcome.hash_of_30 = location.hash;
  location.hash = "#token=7";
  setTimeout(() => {
    seen("hash");
    outcome.failures = failures;
    document.body.append(make("pre", { id: "outcome" }, encodeURIComponent(JSON.stringify(outcome))));
  }, 100);
}, 400);
</script>
</body>"""
FAILURES = r"""<head>
<script>
const failures = [];
addEventListener("error", event => failures.push(event.message));
addEventListener("unhandledrejection", event => failures.push(String(event.reason)));
addEventListener("securitypolicyviolation", event => failures.push(event.violatedDirective));
window.alert = text => failures.push(`alert ${text}`);
console.error = console.warn = (...text) => failures.push(text.join(" "));
</script>"""


@pytest.fixture(scope="module")
def outcome(page, folder):
    """What the page shows in a browser, one after the other: as linked to, and after each click and key."""
    browser = next(filter(None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome", "chrome"])), None)
    if browser is None:
        pytest.skip("no chromium or chrome is installed here")
    copy = folder / "driven.html"
    copy.write_text(page.replace("<head>", FAILURES, 1).replace("</body>", DRIVER), encoding="utf-8")
    done = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'browser'}", "--window-size=400,800",
         "--virtual-time-budget=5000", "--dump-dom", f"{copy.as_uri()}#token=12"],
        capture_output=True, encoding="utf-8", timeout=60,
    )
    found = re.search(r'<pre id="outcome">(.*?)</pre>', done.stdout)
    assert found, f"the page was not driven to its end: {done.stderr[-500:]}"
    return json.loads(unquote(found[1]))


def shown(number):
    """A number as the page shows it: three digits."""
    digits = f"{number:.2e}"
    return (f"{Decimal(digits):f}" if abs(number) >= 1e-6 else digits.replace("e-0", "e-")).replace("-", "−")


def test_a_browser_opens_the_page_without_complaint(outcome, data):
    assert outcome["failures"] == [] and outcome["scripts"] == 4 and outcome["images"] == 0      # two of them the test's
    assert outcome["overflow"] <= 0                                       # 400 pixels are wide enough
    assert outcome["completions"] == [one["completion"].replace("\r\n", "\n") for one in data["models"]]


def test_clicks_and_keys_and_links_choose_the_token(outcome, data):
    last = len(data["tokens"]) - 1
    steps = {"linked": 12, "clicked": 5, "right": 6, "left": 5, "end": last, "home": 0, "not in the strip": 0, "on": 2}
    steps |= {"back": 1, "cell": 30, "hash": 7}
    assert {step: outcome[step]["chosen"] for step in steps} == {step: [t] for step, t in steps.items()}
    assert 0 < outcome["up"]["chosen"][0] < last
    assert outcome["select"]["chosen"] == [30]                            # arrows in the list of heads are its own
    assert outcome["hash_of_30"] == "#token=30"


@pytest.mark.parametrize("step", ["linked", "clicked", "end", "home", "cell"])
def test_the_panels_show_the_numbers_of_the_chosen_token(outcome, data, step):
    view, names, tokens = outcome[step], data["names"], data["tokens"]
    (t,) = view["chosen"]
    for table, model in zip(view["likely"], data["models"], strict=True):
        came = tokens[t + 1] if t + 1 < len(tokens) else None
        top, p = model["next"]["top"][t], model["next"]["p"][t]
        rows = [[names[token], "", shown(x), "◂" if token == came else ""] for token, x in zip(top, p, strict=True)]
        if came is not None and came not in top:
            rows.append([names[came], "", shown(model["next"]["came"]["p"][t + 1]), "◂"])
        assert table == rows
    a, b = (model["experts"] for model in data["models"])
    for block, row in enumerate(view["routes"]):
        assert row[1 : 1 + CONFIG.experts] == [str(int(100 * p + 0.5)) for p in a[block]["probs"][t]]
        assert view["framed"][block] == sorted(a[block]["chosen"][t])
        pairs = [
            "".join(f"{e} {w:.2f} " for e, w in zip(model[block]["chosen"][t], model[block]["weights"][t], strict=True))
            for model in (a, b)
        ]
        same = set(a[block]["chosen"][t]) == set(b[block]["chosen"][t])
        assert row[1 + CONFIG.experts :] == [pairs[0], "the same" if same else pairs[1]]
    for distance in data["streams"]["distance"][t]:
        assert " ".join(f"{d:.3f}" for d in distance) in view["numbers"]
    if t:
        for model in data["models"]:
            came = model["next"]["came"]
            assert f"p {shown(came['p'][t])}, rank {came['rank'][t]}, log p {shown(came['log_p'][t])}" in view["now"]


@pytest.mark.parametrize("step", ["linked", "end", "cell"])
def test_the_pictures_of_attention_show_its_weights(outcome, data, step):
    (t,) = outcome[step]["chosen"]
    for kind in "sparse", "linear":
        heads = [head[t] for layer in data["attention"] if layer["kind"] == kind for head in layer["weights"]]
        most = max(abs(w) for head in heads for w in head if w is not None)
        assert len(outcome[step]["opacity"][kind]) == len(heads)
        for opacity, head in zip(outcome[step]["opacity"][kind], heads, strict=True):
            assert not any(opacity[t + 1 :])                              # what comes later is blank
            for seen, w in zip(opacity, head, strict=False):
                least = 0.12 if kind == "sparse" else 0.25 if w < 0 else 0
                assert abs(seen / 255 - (1 if w is None else least + (1 - least) * abs(w) / most)) < 0.004
    row = data["attention"][3]["weights"][0][t]
    words = [classes.split() for classes in outcome[step]["classes"][0]]
    assert [w is None for w in row] == ["dropped" in each for each in words[: t + 1]]
    assert [w is not None for w in row] == ["kept" in each for each in words[: t + 1]]
    assert ["unread" in each for each in words] == [s > t for s in range(len(words))]
    linear = data["attention"][0]["weights"][0][t]
    assert ["minus" in each.split() for each in outcome[step]["classes"][1][: t + 1]] == [w < 0 for w in linear]


def test_the_grid_shows_the_experts_and_where_the_other_takes_others(outcome, data):
    def rgb(colour):
        return ",".join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))

    a, b = (model["experts"] for model in data["models"])
    assert len(set(outcome["palette"])) == CONFIG.experts
    for block, columns in enumerate(outcome["grid"]):
        for t, column in enumerate(columns):
            (first, second), top = a[block]["chosen"][t], int(17 * a[block]["weights"][t][0] + 0.5)
            expected = [rgb(outcome["palette"][e]) for e in [first] * top + [second] * (17 - top)]
            if {first, second} != set(b[block]["chosen"][t]):
                expected[13:] = [rgb(outcome["ink"].strip())] * 4
            assert column == expected
    assert outcome["written"] == [t >= data["prompt"] for t in range(len(data["tokens"]))]


def test_the_chart_shows_the_streams(outcome, data):
    distance, shares = np.array(data["streams"]["distance"][30]), np.array([data["streams"][way] for way in ("read", "write")])
    points = np.array([[point.split() for point in line[1:].split("L")] for line in outcome["cell"]["lines"]], float)     # (S,L+1,2)
    order = sorted(range(CONFIG.streams), key=lambda s: distance[-1, s])
    np.testing.assert_allclose(points[:, :, 1].T, 130 - 116 * distance[:, order] / distance.max(), atol=1e-6)
    assert (np.diff(points[0, :, 0]) > 0).all() and (points[:, :, 0] == points[0, :, 0]).all()
    np.testing.assert_allclose(outcome["bars"], np.ravel(32 * shares / shares.max(axis=(1, 2), keepdims=True)), rtol=1e-6)


def test_the_pointer_is_told_what_is_under_it(outcome, data):
    token, cell, key, later = outcome["tips"]
    came, experts = data["models"][1]["next"]["came"], data["models"][0]["experts"][1]
    assert token.startswith("6: ") and f"\nB: p {shown(came['p'][6])}, rank {came['rank'][6]}, log p" in token
    assert cell.startswith("block 1, token 6: ")
    assert f"expert {experts['chosen'][6][0]}: {shown(experts['weights'][6][0])}, expert" in cell
    assert key.startswith("6: ") and key.endswith(f"weight {shown(data['attention'][1]['weights'][1][30][6])}")
    assert later.startswith("40: ") and later.endswith("comes later")


def test_another_head_is_another_text(outcome, data):
    before, after = outcome["cell"], outcome["select"]
    for kind, told, head in ("sparse", after["told"][0], data["attention"][3]["weights"][2]), \
            ("linear", after["told"][1], data["attention"][1]["weights"][1]):
        kept = sorted(((abs(w), w) for w in head[30] if w is not None), reverse=True)
        assert told.startswith(f"Keeps {len(kept)} of 31 keys" if kind == "sparse" else f"Sum {shown(sum(w for _, w in kept))}")
        assert all(shown(w) in told for _, w in kept[:3])
    assert before["told"][0] != after["told"][0] and before["told"][1] != after["told"][1]
    assert before["opacity"] == after["opacity"]                          # all heads are there at once


def test_the_colours_are_surprise_or_the_change(outcome, data):
    a, b = ([x or 0 for x in model["next"]["came"]["log_p"]] for model in data["models"])
    np.testing.assert_allclose(np.array(outcome["select"]["colours"], float), np.minimum(1, -np.array(a) / 4), atol=1e-6)
    np.testing.assert_allclose(np.array(outcome["change"]["colours"], float), np.minimum(1, abs(np.subtract(a, b)) / 2), atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["{a}", ""], "prompt is empty"),
        (["{a}", "caf\udce9"], "lone surrogate"),
        (["{a}", "x" * 80], "81 tokens; it needs 1 to 80"),
        (["{missing}", "x"], "{missing}"),
        (["{a}/model.safetensors", "x"], "model.safetensors"),
        (["{a}", "x", "--compare", "{missing}"], "{missing}"),
        (["{a}", "x", "--compare", "{larger}"], "{larger} has other sizes"),
        (["{a}", "x", "--out", "{a}"], "--out"),
        (["{a}", "x", "--out", "{missing}/page.html"], "--out"),
        pytest.param(
            ["{a}", "x", "--out", "{pipe}"], "{pipe} is there and is no file",
            marks=pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes"),
        ),
        (["{a}", "x", "--max-new-tokens", "0"], "--max-new-tokens"),
        (["{a}"], "PROMPT"),
        ([], "CHECKPOINT"),
    ],
)
def test_bad_input_is_one_line_and_no_page(folder, tmp_path, monkeypatch, capsys, arguments, says):
    monkeypatch.chdir(tmp_path)
    places = {"a": folder / "a", "missing": folder / "none", "larger": folder / "larger", "pipe": folder / "pipe"}
    line = refused(monkeypatch, capsys, *(argument.format(**places) for argument in arguments))
    assert line.startswith("minimoe.inspect: ") or "pytest" in line
    assert says.format(**places) in line and list(tmp_path.iterdir()) == []


def test_numbers_beyond_any_are_refused(tmp_path, monkeypatch, capsys):
    model = make(1)
    model.embedding.weight.data *= 1e10
    model.final_norm.weight.data *= 1e35
    model.save_pretrained(tmp_path / "model")
    with np.errstate(all="ignore"):
        assert "gives NaN or infinity" in refused(monkeypatch, capsys, tmp_path / "model", "x", "--out", tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("fails", ["fsync", "replace"])
def test_a_page_is_written_whole_or_not_at_all(folder, tmp_path, monkeypatch, capsys, fails):
    out = tmp_path / "page.html"
    out.write_text("mine")

    def fail(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, fails, fail)
        assert "No space left" in refused(patch, capsys, folder / "a", "x", "--out", out)
    assert out.read_text() == "mine" and list(tmp_path.iterdir()) == [out]
    link = tmp_path / "link.html"
    link.symlink_to(out)
    assert command(monkeypatch, folder / "a", "a\\nb", "--out", link) == 0
    assert link.is_symlink() and f"[1,{FIRST_BYTE + 97},{FIRST_BYTE + 10},{FIRST_BYTE + 98}," in out.read_text(encoding="utf-8")
    assert f"{link}: 4 tokens of the prompt" in capsys.readouterr().out and set(tmp_path.iterdir()) == {out, link}
