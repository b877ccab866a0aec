"""Checkpoints damaged or forged in every way there is, and what the commands make of them."""

import json
import os
import shutil
import socket
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from minimoe import pretrain, release, rloo
from minimoe.coding import scoring
from minimoe.config import PRESETS, ModelConfig
from minimoe.errors import InputError
from minimoe.model import MiniMoE
from tests.commands import call, refusal

generate = import_module("minimoe.generate")    # the package's own name is the function
CONFIG, WEIGHTS, MOMENTS, RUN = "config.json", "model.safetensors", "optimizer.safetensors", "run.json"
FILES = CONFIG, WEIGHTS, MOMENTS, RUN
SIZES = PRESETS["micro"].to_dict()
NOBODY = 65534
ODD = [None, True, -1, -0.5, 0, 1.5, 2**31, 2**63, 2**64, 10**400, 1e308, "", "x", "12", "\0", "\ud800", [], [0], {}, {"a": 1}]


class Case(NamedTuple):
    kind: str
    name: str
    damage: Callable[[Path], Any]       # of the checkpoint's folder, in a folder of its own
    says: tuple[str, ...] = ()          # what the refusal must name
    sound: bool | None = False          # True: it must load; None: it may, with the numbers of a sound one
    reader: str = "generate"


def checkpoints(tally: Any, count: int = 100_000, seed: int = 0) -> None:
    """Read checkpoints cut, flipped, forged and misplaced: each is refused in one line that names file and tensor."""
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(scoring, "MAX_NEW_TOKENS", 1), \
            mock.patch.multiple(pretrain, DEV_TASKS=1), mock.patch.multiple(rloo, DEV_TASKS=1):
        os.chmod(folder, 0o755)                                           # for nobody, who has permission for little
        template = Path(folder, "template")
        make(template)
        rng = np.random.default_rng(seed)
        cases = list(all_cases(template / "run" / "last", rng))
        kinds: dict[str, list[Case]] = {}
        for case in cases:
            kinds.setdefault(case.kind, []).append(case)
        ranked = [(rank, kind[i]) for kind in kinds.values() for rank, i in enumerate(rng.permutation(len(kind)))]
        ranked.sort(key=lambda pair: pair[0])                             # the first of each kind, then the second ones, ...
        for _, case in ranked[:count]:
            copy = Path(folder, "case")
            shutil.copytree(template, copy, symlinks=True)
            tally.record(case.kind, case.name, problem(case, copy, template))
            shutil.rmtree(copy)


def make(template: Path) -> None:
    """Write a sound run of each command, and a release with its base."""
    nano = ["--preset", "micro", "--batch-size", 1, "--sequence-length", 8, "--threads", 1]
    small = ["--group-size", 2, "--max-new-tokens", 1, "--replay-batch", 1, "--save-at", "", "--threads", 1]
    for module, *options in [
        (pretrain, *nano, "--steps", 2, "--save-at", "1", "--out", template / "run"),
        (rloo, "--base", template / "run" / "step-0001", *small, "--groups", 1, "--out", template / "improved"),
        (release, template / "run" / "step-0001", template / "released" / "base"),
        (release, template / "improved" / "last", template / "released" / "trained", "--base", template / "released" / "base"),
    ]:
        code, _, told = call(module, *options)
        assert code == 0, told


def problem(case: Case, copy: Path, template: Path) -> str:
    """Return what is wrong with how the case is met."""
    places = {"generate": "run/last", "pretrain": "run/last", "rloo": "improved/last", "released": "released/trained"}
    folder = copy / places[case.reader]
    case.damage(folder)
    before = snapshot(copy)
    with nobody() if case.kind == "no permission" else nullcontext():
        if case.reader in ("pretrain", "rloo"):
            outcome = call(globals()[case.reader], "--resume", "--out", folder.parent, "--threads", 1)
        else:
            outcome = call(generate, "--checkpoint", folder, "x", "--max-new-tokens", 1)
    if outcome[0] != 0 or case.sound is False:
        if case.sound:
            return f"refused: {outcome[2][-300:]}"
        return refusal(outcome, *case.says) or ("the files are not as they were" if snapshot(copy) != before else "")
    if case.reader == "generate":
        numbers, right = (weights(path) for path in (folder, template / places["generate"]))
        if numbers != right:
            return "loaded as other numbers"
    return ""


@contextmanager
def nobody() -> Iterator[None]:
    """Within it, root has no more permission than others."""
    root = hasattr(os, "setresuid") and os.geteuid() == 0
    if root:
        os.setresuid(NOBODY, NOBODY, 0)
    try:
        yield
    finally:
        if root:
            os.setresuid(0, 0, 0)


def weights(folder: Path) -> dict[str, bytes]:
    return {name: parameter.data.tobytes() for name, parameter in MiniMoE.from_pretrained(folder).named_parameters()}


def snapshot(folder: Path) -> dict[str, Any]:
    """What is in a folder, metrics aside: going on with a run that is done may rewrite them."""
    paths = [path for path in folder.rglob("*") if path.suffix != ".jsonl"]
    return {str(path): path.read_bytes() if path.is_file() and not path.is_symlink() else path.lstat().st_mode for path in paths}


def all_cases(last: Path, rng: np.random.Generator) -> Iterator[Case]:
    yield Case("sound", "as saved", lambda folder: None, sound=True)
    for reader in "pretrain", "rloo", "released":
        yield Case("sound", "as saved", lambda folder: None, sound=True, reader=reader)
    for name in WEIGHTS, MOMENTS:
        reader = "generate" if name == WEIGHTS else "pretrain"
        yield from damaged_bytes(name, reader, (last / name).read_bytes(), rng)
        yield from forged_tensors(name, reader, (last / name).read_bytes(), rng)
        yield from forged_headers(name, reader)
    for name in CONFIG, RUN:
        yield from damaged_text(name, (last / name).read_text(), "generate" if name == CONFIG else "pretrain")
    yield from forged_config()
    for reader in "pretrain", "rloo":
        yield from forged_run(reader, last if reader == "pretrain" else last.parents[1] / "improved" / "last")
    yield from forged_base()
    yield from misplaced()


def damaged_bytes(name: str, reader: str, data: bytes, rng: np.random.Generator) -> Iterator[Case]:
    """Cut at every byte of the header and at many after it; one bit flipped, and bytes written over."""
    header = header_length(data)
    for length in [*range(header + 1), *rng.integers(header, len(data), 300).tolist()]:
        yield Case("cut", f"{name} at {length}", edit(name, lambda b, n=length: b[:n]), (name,), reader=reader)
    for place in [*range(64), *rng.integers(64, 8 * header, 1500).tolist()]:
        sound = None if place >= 64 else False
        yield Case("a bit of the header", f"{name} bit {place}", edit(name, lambda b, p=place: flip(b, p)), (name,), sound, reader)
    for _ in range(200):
        start, more = int(rng.integers(8, header)), rng.bytes(int(rng.integers(1, 9)))
        change = edit(name, lambda b, s=start, m=more: b[:s] + m + b[s + len(m) :])
        yield Case("bytes of the header", f"{name} {more!r} at {start}", change, (name,), None, reader)
    yield Case("longer", f"{name} and a byte", edit(name, lambda b: b + b"\0"), (name,), reader=reader)
    for content in b"", b"\0", b"\0" * 8, b"\0" * 4096, b"\x80\x04N.", b"PK\3\4" + b"\0" * 99, b"\x93NUMPY\1\0", rng.bytes(4096):
        yield Case("another file", f"{name}: {content[:8]!r}", edit(name, lambda b, c=content: c), (name,), reader=reader)


def forged_tensors(name: str, reader: str, data: bytes, rng: np.random.Generator) -> Iterator[Case]:
    """A valid file whose tensors are not those of the model, each tensor in turn."""
    header, _ = split(data)
    for tensor, entry in header.items():
        shape, size = entry["shape"], int(np.prod(entry["shape"]))
        others = [[size + 1], [*shape, 2], [size // 2], [0], [2] + shape]
        if len(shape) > 1:
            others += [shape[::-1]] if shape != shape[::-1] else []
            others += [[size]]
        changes: list[tuple[str, Callable[[dict[str, Any]], Any]]] = [
            ("missing", lambda t, n=tensor: t.pop(n)),
            ("renamed", lambda t, n=tensor: t.update({n + "_": t.pop(n)})),
            ("of another dtype", lambda t, n=tensor, s=shape: t.update({n: forged(s, rng.choice(["I32", "U8", "BOOL", "I64"]))})),
            ("of another shape", lambda t, n=tensor, s=others[rng.integers(len(others))]: t.update({n: forged(s, "F32")})),
        ]
        for value in np.nan, np.inf, -np.inf:
            changes.append(("not a number", lambda t, n=tensor, s=shape, v=value: t.update({n: poisoned(s, v, rng)})))
        changes.append(("too large", lambda t, n=tensor, s=shape: t.update({n: poisoned(s, 1e300, rng, "F64")})))
        if tensor.startswith("v."):
            changes.append(("negative", lambda t, n=tensor, s=shape: t.update({n: poisoned(s, -1e-9, rng)})))
        for what, change in changes:
            yield Case(f"a tensor {what}", f"{name}: {tensor}", tensors(name, change), (name, repr(tensor)), reader=reader)
    for extra in "extra", "", "\n\x1b[2J", "../../etc/passwd", "x" * 5000, "blocks.99.read", "__class__", "é\u202e":
        change = tensors(name, lambda t, n=extra: t.update({n: forged([2], "F32")}))
        yield Case("a tensor too many", f"{name}: {extra[:20]!r}", change, (name, extra[:5000] if extra.isprintable() else ""), reader=reader)


def forged_headers(name: str, reader: str) -> Iterator[Case]:
    """Headers that lie about where the numbers are."""

    def change(what: str, lie: Callable[[dict[str, Any], bytes], tuple[Any, bytes]], sound: bool | None = False) -> Case:
        return Case("a header that lies", f"{name}: {what}", edit(name, lambda b: join(*lie(*split(b)))), (name,), sound, reader)

    def entry(key: str, value: Any, which: int = 0) -> Callable[[dict[str, Any], bytes], tuple[Any, bytes]]:
        return lambda header, body: (header | {n: e | {key: value} for n, e in [list(header.items())[which]]}, body)

    def offsets(move: Callable[[int, int, int], list[int]], which: int) -> Callable[[dict[str, Any], bytes], tuple[Any, bytes]]:
        def lie(header: dict[str, Any], body: bytes) -> tuple[Any, bytes]:
            name, old = list(header.items())[which]
            return header | {name: old | {"data_offsets": move(*old["data_offsets"], len(body))}}, body

        return lie

    moves: dict[str, Callable[[int, int, int], list[int]]] = {
        "overlap before": lambda a, b, n: [a - 4, b - 4], "overlap after": lambda a, b, n: [a + 4, b + 4],
        "first bytes again": lambda a, b, n: [0, b - a], "last bytes again": lambda a, b, n: [n - b + a, n],
        "backwards": lambda a, b, n: [b, a], "empty": lambda a, b, n: [a, a], "beyond the end": lambda a, b, n: [a, n + 4],
        "far beyond": lambda a, b, n: [2**63, 2**63 + b - a], "all": lambda a, b, n: [0, n], "one": lambda a, b, n: [a],
        "three": lambda a, b, n: [a, b, b], "as text": lambda a, b, n: [str(a), str(b)], "fractions": lambda a, b, n: [a + 0.5, b + 0.5],
        "negative": lambda a, b, n: [-4, b - a - 4], "wrapped": lambda a, b, n: [2**64 - 4, b - a - 4],
    }
    for what, move in moves.items():
        for which in range(1, 11):
            yield change(f"{what}, tensor {which}", offsets(move, which))
    yield change("a hole in front", lambda h, b: ({n: shifted(e, 4) for n, e in h.items()}, b"\0" * 4 + b))
    yield change("a hole inside", lambda h, b: ({n: shifted(e, 4 * (i > 0)) for i, (n, e) in enumerate(by_place(h))}, b[:4] + b"\0" * 4 + b[4:]))
    yield change("bytes at the end", lambda h, b: (h, b + b"\0" * 4))
    for key, values in {
        "shape": [None, [], [2**62, 4], [2**64, 0], [2**40, 2**40, 0], [-1], [1.5], ["2"], 6, "6", {}],
        "dtype": [None, "", "F31", "f32", "BF16", "F8_E4M3", "C64", "F64", 32, [], "O", "<f4", "object"],
    }.items():
        for value in values:
            yield change(f"{key} {value!r}", entry(key, value))
    for what in None, [], 3, "x", {}, {"x": 1}, {"x": {}}, {"__metadata__": 3}:
        yield change(f"{what!r} for a header", lambda h, b, w=what: (w, b))
    yield change("metadata that is no text", lambda h, b: ({"__metadata__": {"format": 3}} | h, b))
    yield change("metadata", lambda h, b: ({"__metadata__": {"format": "np", "x": "__import__('os')"}} | h, b), sound=None)
    for text in b"{" * 100_000, b"[" * 100_000, b'{"a":' * 50_000, b" " * 100, b'{"\xff": 1}', b"{}", b'{"a":1e999}':
        yield Case("a header that lies", f"{name}: {text[:9]!r}", edit(name, lambda b, t=text: struct.pack("<Q", len(t)) + t), (name,), reader=reader)
    twice = edit(name, lambda b: join_text(json.dumps(split(b)[0])[:-1] + ", " + json.dumps(split(b)[0])[1:], split(b)[1]))
    yield Case("a header that lies", f"{name}: every tensor twice", twice, (name,), None, reader)


def damaged_text(name: str, text: str, reader: str) -> Iterator[Case]:
    """JSON cut at every byte, in other encodings, with a key twice, and other things than JSON."""
    for length in range(len(text) - 2):
        yield Case("cut", f"{name} at {length}", edit(name, lambda b, n=length: b[:n]), (name,), reader=reader)
    forged: dict[str, bytes] = {encoding: text.encode(encoding) for encoding in ("utf-16", "utf-32", "utf-8-sig", "utf-16-le")}
    forged |= {
        "a list": b"[]", "a number": b"3", "null": b"null", "text": b'"config"', "nothing": b"", "no text": b"\xff\xfe\x00", "two": 2 * text.encode(),
        "Python": b"__import__('os').system('true')", "YAML": text.encode().replace(b'"', b""), "a pickle": b"\x80\x04N.",
        "a comment": text.encode() + b"// x", "NaN": text.encode().replace(b": 2", b": NaN", 1), "1e999": text.encode().replace(b": 2", b": 1e999", 1),
        "deep lists": b"[" * 10**6, "deep objects": b'{"a":' * 10**6, "many digits": b'{"width": ' + b"9" * 10**5 + b"}",
        "a key twice": text.encode().replace(b"{", b'{"' + text.split('"')[1].encode() + b'": 1, ', 1),
        "17 MB": text.encode() + b" " * 17_000_000,
    }
    for what, content in forged.items():
        yield Case("not JSON as saved", f"{name}: {what}", edit(name, lambda b, c=content: c), (name,), reader=reader)


def forged_config() -> Iterator[Case]:
    """Sizes that make no model, or another than the tensors are of."""
    for key, size in SIZES.items():
        for value in ODD:
            yield Case("a config that makes no model", f"{key}: {value!r:.30}", config(lambda c, k=key, v=value: c.update({k: v})), (CONFIG,))
        yield Case("a config that makes no model", f"no {key}", config(lambda c, k=key: c.pop(k)), (CONFIG, repr(key)))
        if key not in ("context", "heads", "chunk_size", "sparse_every", "sparse_top_k", "experts_per_token"):    # no tensor knows of
            for other in {size + 1, 2 * size, 8 * size, 2**20, max(1, size - 1)} - {size}:
                says = WEIGHTS if makes_a_model(SIZES | {key: other}) else CONFIG
                yield Case("a config of another model", f"{key}: {other}", config(lambda c, k=key, v=other: c.update({k: v})), (says,))
    for key, value in {"heads": 5, "experts_per_token": 6, "blocks": 1025, "vocabulary": 259}.items():
        yield Case("a config that makes no model", f"{key}: {value}", config(lambda c, k=key, v=value: c.update({k: v})), (CONFIG, key))
    yield Case("a config that makes no model", "an odd head width", config(lambda c: c.update(width=9)), (CONFIG, "head width"))
    largest = {"width": 2**20, "heads": 2**19, "expert_width": 2**20, "experts": 2**20, "blocks": 1024, "vocabulary": 2**20, "streams": 2**20}
    yield Case("a config of another model", "the largest", config(lambda c: c.update(largest)), (WEIGHTS,))
    for key in "layers", "", "__class__", "Width", "\n", "é", "torch_dtype", "auto_map":
        yield Case("an unknown key", repr(key), config(lambda c, k=key: c.update({k: 1})), (CONFIG, repr(key)))


def makes_a_model(sizes: dict[str, int]) -> bool:
    try:
        return bool(ModelConfig(**sizes))
    except InputError:
        return False


def forged_run(reader: str, last: Path) -> Iterator[Case]:
    """A run.json whose values, each in turn, are something else; one that is accepted may be right."""
    content = json.loads((last / RUN).read_text())

    def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        if path:
            yield path
        for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
            yield from leaves(item, (*path, key))

    for path in leaves(content):
        for value in ODD:
            if path[-1] in ("steps", "groups") and isinstance(value, (int, float)) and value > 1:
                continue                                                  # a longer run is right, and takes its time

            def damage(folder: Path, path: tuple[Any, ...] = path, value: Any = value) -> None:
                run = json.loads((folder / RUN).read_text())
                place = run
                for key in path[:-1]:
                    place = place[key]
                place[path[-1]] = value
                (folder / RUN).write_text(json.dumps(run))

            yield Case("a run that was never", f"{reader} {'.'.join(map(str, path))}: {value!r:.30}", damage, (), None, reader)
    for key in [*content, *content["settings"]]:
        def drop(folder: Path, key: str = key) -> None:
            run = json.loads((folder / RUN).read_text())
            (run if key in run else run["settings"]).pop(key)
            (folder / RUN).write_text(json.dumps(run))

        yield Case("a run that was never", f"{reader} no {key}", drop, reader=reader)


def forged_base() -> Iterator[Case]:
    """A release whose base is not beside it, or not its base."""
    values = ["../missing", "../trained", ".", "", "..", "/", "/etc", "../../run/last", "../../improved/last", "../base/..", "../base/../../run/last",
              "\0", "../base\0", "\ud800", "../" + "x" * 300, "../x" * 2000, "~", "$HOME", "file:///etc", "../base/" + CONFIG,
              "../link", "../loop", "../dangling", "../pipe", "\n", *[odd for odd in ODD if not isinstance(odd, str)]]
    for value in values:
        yield Case("a base that is none", f"{value!r:.40}", trap(value), (CONFIG,), reader="released")

    def circle(folder: Path) -> None:
        config(lambda c: c.update(base="../trained"))(folder.parent / "base")

    yield Case("a base that is none", "in a circle", circle, (CONFIG,), reader="released")
    for name in CONFIG, WEIGHTS:
        yield Case("a base that is none", f"without {name}", lambda folder, n=name: (folder.parent / "base" / n).unlink(), (name,), reader="released")
        yield Case("a base that is none", f"{name} cut", lambda folder, n=name: edit(n, lambda b: b[: len(b) // 2])(folder.parent / "base"), (name,), reader="released")
    yield Case("a base that is none", "of other sizes", lambda folder: config(lambda c: c.update(width=24))(folder.parent / "base"), (CONFIG,), reader="released")
    names = list(MiniMoE(PRESETS["micro"], None).named_parameters())
    for name, _ in names:
        lack = tensors(WEIGHTS, lambda t, n=name: t.pop(n))
        yield Case("a base that lacks a tensor", name, lambda folder, d=lack: d(folder.parent / "base"), (WEIGHTS, repr(name)), reader="released")


def trap(base: Any) -> Callable[[Path], None]:
    """Name this base, among what could lead astray."""

    def damage(folder: Path) -> None:
        beside = folder.parent
        (beside / "link").symlink_to(beside.parent / "run" / "step-0001")
        (beside / "loop").symlink_to("loop")
        (beside / "dangling").symlink_to("nowhere")
        os.mkfifo(beside / "pipe")
        config(lambda c: c.update(base=base))(folder)

    return damage


def misplaced() -> Iterator[Case]:
    """Something else than a file where a file should be, or than a folder where the checkpoint should be."""

    def replaced(by: Callable[[Path], Any]) -> Callable[[Path], Any]:
        def change(path: Path) -> None:
            path.rename(path.with_name("aside"))
            by(path)
            if (aside := path.with_name("aside")).is_dir():
                shutil.rmtree(aside)
            else:
                aside.unlink()

        return change

    def pipe(path: Path) -> None:
        here = os.getcwd()
        os.chdir(path.parent)                                             # a socket's path must be short
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(path.name)
        os.chdir(here)

    ways: dict[str, Callable[[Path], Any]] = {
        "missing": lambda path: None, "a folder": lambda path: path.mkdir(), "a loop of links": lambda path: path.symlink_to(path.name),
        "a link to nothing": lambda path: path.symlink_to("nowhere"), "a pipe": os.mkfifo, "a socket": pipe,
        "endless": lambda path: path.symlink_to("/dev/zero"), "empty": lambda path: path.write_bytes(b""),
        "a link to a folder": lambda path: path.symlink_to("/"), "a link to a terminal": lambda path: path.symlink_to("/dev/tty"),
        "a link to the system": lambda path: path.symlink_to("/proc/self/mem"),
    }
    for name in FILES:
        reader = "generate" if name in (CONFIG, WEIGHTS) else "pretrain"
        for what, way in ways.items():
            yield Case("no file", f"{name}: {what}", lambda folder, n=name, w=way: replaced(w)(folder / n), (name,), reader=reader)
        yield Case("no permission", name, lambda folder, n=name: forbid(folder, n), (name,), reader=reader)

        def link(folder: Path, name: str = name) -> None:
            (folder / name).rename(folder.parent / name)
            (folder / name).symlink_to(folder.parent / name)

        yield Case("a link to a sound file", name, link, sound=True, reader=reader)
    for what, way in ways.items():
        for reader in "generate", "released":
            if what != "a folder":
                yield Case("no folder", f"{what}, {reader}", replaced(way), (), reader=reader)
    yield Case("no permission", "the folder", lambda folder: forbid(folder, "."), ("last",))

    def moved(folder: Path) -> None:
        folder.rename(folder.with_name("real"))
        folder.symlink_to("real")

    yield Case("a link to a sound folder", "last", moved, sound=True)
    yield Case("half a swap", "last", lambda folder: folder.rename(folder.with_name(".last.old")), sound=True)


def forbid(folder: Path, name: str) -> None:
    for path in folder.iterdir():
        path.chmod(0o644)
    (folder / name).chmod(0)


def edit(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """Return a damage that changes a file's bytes."""
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes())) and None


def config(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Return a damage that changes what config.json says."""

    def damage(folder: Path) -> None:
        content = json.loads((folder / CONFIG).read_text())
        change(content)
        (folder / CONFIG).write_text(json.dumps(content))

    return damage


def tensors(name: str, change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Return a damage that changes the tensors of a file, name -> (dtype, shape, bytes)."""

    def damage(folder: Path) -> None:
        header, body = split((folder / name).read_bytes())
        content = {n: (e["dtype"], e["shape"], body[slice(*e["data_offsets"])]) for n, e in by_place(header)}
        change(content)
        header, body = {}, b""
        for n, (dtype, shape, data) in content.items():
            header[n] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
            body += data
        (folder / name).write_bytes(join(header, body))

    return damage


def forged(shape: list[int], dtype: str) -> tuple[str, list[int], bytes]:
    width = {"I64": 8, "F64": 8, "I32": 4, "F32": 4, "U8": 1, "BOOL": 1}[dtype]
    return str(dtype), shape, b"\0" * (width * int(np.prod(shape)))


def poisoned(shape: list[int], value: float, rng: np.random.Generator, dtype: str = "F32") -> tuple[str, list[int], bytes]:
    array = np.zeros(shape, {"F32": "<f4", "F64": "<f8"}[dtype])
    array.reshape(-1)[rng.integers(array.size)] = value
    return dtype, shape, array.tobytes()


def header_length(data: bytes) -> int:
    return 8 + struct.unpack("<Q", data[:8])[0]


def split(data: bytes) -> tuple[dict[str, Any], bytes]:
    return json.loads(data[8 : header_length(data)]), data[header_length(data) :]


def join(header: Any, body: bytes) -> bytes:
    return join_text(json.dumps(header), body)


def join_text(text: str, body: bytes) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode() + body


def by_place(header: dict[str, Any]) -> list[tuple[str, Any]]:
    return sorted(header.items(), key=lambda item: item[1]["data_offsets"])


def shifted(entry: dict[str, Any], by: int) -> dict[str, Any]:
    return entry | {"data_offsets": [offset + by for offset in entry["data_offsets"]]}


def flip(data: bytes, bit: int) -> bytes:
    return data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]
