import json
import os
import struct
import subprocess
import sys
import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from minimoe import files
from minimoe.errors import InputError
from minimoe.files import alone, read_json, read_tensors, recover, write_folder

SHAPES = {"w": (2, 3), "gain": (3,), "scale": (), "none": (0, 3)}
SOUND = save({name: np.arange(np.prod(shape), dtype=np.float32).reshape(shape) for name, shape in SHAPES.items()})
HEADER = 8 + struct.unpack("<Q", SOUND[:8])[0]


def version(number):
    return {"config.json": {"version": number}, "model.safetensors": {"w": np.full((2, 3), number, np.float32)}}


def read_version(folder):
    """The version a folder holds, from all its files; None if there is no folder."""
    recover(folder)
    if not folder.exists():
        return None
    number = read_json(folder / "config.json")["version"]
    assert (read_tensors(folder / "model.safetensors", {"w": (2, 3)}, "float32")["w"] == number).all()
    return number


def refused(read, *arguments):
    """The message of the InputError that reading raises: one line that begins with the path."""
    with pytest.raises(InputError) as error:
        read(*arguments)
    message = str(error.value)
    assert message.startswith(str(arguments[0])) and message.isprintable()
    return message


def test_views_are_saved_as_what_they_show(tmp_path):
    w = np.arange(12, dtype=np.float32).reshape(3, 4)
    arrays = {
        "transposed": w.T,
        "strided": w[::2],
        "reversed": w[:, ::-1],
        "broadcast": np.broadcast_to(w[0], (5, 4)),
        "scalar": np.float64(0.1),
        "point": np.array(0.1),
        "empty": w[:0],
        "big-endian": w.astype(">f4"),
        "half": np.float16([0.1]),
    }
    write_folder(tmp_path / "a", {"arrays.safetensors": arrays})
    shapes = {name: array.shape for name, array in arrays.items()}
    loaded = read_tensors(tmp_path / "a" / "arrays.safetensors", shapes, np.float64)
    for name, array in arrays.items():
        assert np.array_equal(loaded[name], np.float64(array)), name
        flags = loaded[name].flags
        assert loaded[name].dtype == np.float64 and flags.writeable and flags.owndata and flags.c_contiguous


def test_a_write_replaces_every_file_and_leaves_nothing_beside(tmp_path):
    folder = tmp_path / "deep" / "step-0080"
    write_folder(folder, version(1) | {"extra.json": {}})
    write_folder(folder, version(2))
    assert read_version(folder) == 2
    assert {path.name for path in folder.iterdir()} == set(version(2))
    assert [path.name for path in folder.parent.iterdir()] == ["step-0080"]
    assert (folder / "config.json").read_bytes() == b'{\n  "version": 2\n}\n'


def test_a_link_to_a_folder_is_written_through(tmp_path):
    write_folder(tmp_path / "real", version(1))
    try:
        (tmp_path / "link").symlink_to(tmp_path / "real", target_is_directory=True)
    except OSError:
        pytest.skip("links are not allowed here")
    write_folder(tmp_path / "link", version(2))
    assert read_version(tmp_path / "real") == 2 and (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("stranger", ["notes.txt", "photos", "folder.json"])
def test_what_is_not_ours_is_never_deleted(tmp_path, stranger):
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / stranger).write_text("mine") if stranger == "notes.txt" else (folder / stranger).mkdir()
    assert stranger in refused(write_folder, folder, version(1))
    assert [path.name for path in folder.iterdir()] == [stranger]
    (tmp_path / "file").write_text("mine")
    assert "is a file" in refused(write_folder, tmp_path / "file", version(1))
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    "content", [{"a.json": {"x": float("nan")}}, {"a.txt": {}}, {"a.safetensors": {"x": np.array("text")}}]
)
def test_what_cannot_be_written_leaves_the_old_folder(tmp_path, content):
    write_folder(tmp_path / "a", version(1))
    with pytest.raises((ValueError, TypeError, KeyError, InputError)):
        write_folder(tmp_path / "a", version(2) | content)
    assert read_version(tmp_path / "a") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("call", ["mkdir", "fsync", "rename"])
def test_a_disk_that_fails_is_told_of_in_one_line(tmp_path, monkeypatch, call):
    write_folder(tmp_path / "a", version(1))

    def full(*arguments, **keywords):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        said = refused(write_folder, tmp_path / "a", version(2))
    assert "No space left on device" in said and "nothing saved before is lost" in said
    assert read_version(tmp_path / "a") == 1


def test_a_reader_in_the_middle_of_a_swap_does_not_stop_the_writer(tmp_path, monkeypatch):
    """A reader that finds no folder cannot know whether the writer lives: it brings the old one back."""
    write_folder(tmp_path / "a", version(1))
    rename, renamed = os.rename, []

    def disturbed(source, target):
        rename(source, target)
        renamed.append(Path(target).name)
        if renamed == [".a.old"]:
            recover(tmp_path / "a")

    monkeypatch.setattr(os, "rename", disturbed)
    write_folder(tmp_path / "a", version(2))
    assert renamed[:4] == [".a.old", "a", ".a.old", "a"] and read_version(tmp_path / "a") == 2
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_writer_that_ends_its_swap_does_not_stop_the_reader(tmp_path, monkeypatch):
    write_folder(tmp_path / ".a.old", version(1))
    write_folder(tmp_path / "new", version(2))
    rename = os.rename

    def late(source, target):
        rename(tmp_path / "new", tmp_path / "a")
        rename(source, target)                                            # which fails: something is there

    monkeypatch.setattr(os, "rename", late)
    recover(tmp_path / "a")
    monkeypatch.undo()
    assert read_version(tmp_path / "a") == 2


class Killed(BaseException):
    pass


@pytest.mark.parametrize("dead", [False, True], ids=["the call fails", "the process dies"])
@pytest.mark.parametrize("start", ["nothing", "a folder", "a folder and the leftovers of two kills", "half a swap"])
def test_a_write_that_ends_at_any_call_leaves_the_old_or_the_new(tmp_path, monkeypatch, dead, start):
    """At the nth change to the disk: one call fails, or that call and all after it do (nothing cleans up)."""

    def prepare(folder):
        old, new = folder.with_name(f".{folder.name}.old"), folder.with_name(f".{folder.name}.tmp")
        if start != "nothing":
            write_folder(old if start == "half a swap" else folder, version(1))
        if start == "a folder and the leftovers of two kills":
            write_folder(old, version(0))
            new.mkdir()
            (new / "config.json").write_text('{"vers')

    def attempt(folder, fatal):
        """Writes version 2, the `fatal`th call raising; returns how many calls were made."""
        count = 0

        def counted(call):
            def wrapper(*arguments, **keywords):
                nonlocal count
                count += 1
                if count == fatal or dead and count > fatal:
                    raise Killed
                return call(*arguments, **keywords)

            return wrapper

        with monkeypatch.context() as patch:
            for name in ("rename", "replace", "fsync", "mkdir", "unlink", "rmdir"):
                patch.setattr(os, name, counted(getattr(os, name)))
            patch.setattr(files, "save_file", counted(files.save_file))
            try:
                write_folder(folder, version(2))
            except Killed:
                pass
        return count

    prepare(tmp_path / "a0")
    calls = attempt(tmp_path / "a0", fatal=10**6)
    assert calls >= 7 and read_version(tmp_path / "a0") == 2
    seen = set()
    for fatal in range(1, calls + 1):
        folder = tmp_path / f"a{fatal}"
        prepare(folder)
        attempt(folder, fatal)
        assert dead or not start.startswith("a folder") or folder.exists(), "a failure left its repair to the reader"
        seen.add(read_version(folder))
        write_folder(folder, version(3))
        assert read_version(folder) == 3
        assert {path.name for path in tmp_path.iterdir()} == {f"a{done}" for done in range(fatal + 1)}
    assert seen == {None if start == "nothing" else 1, 2}


@pytest.mark.skipif(os.name == "nt", reason="folders cannot be synced there")
def test_everything_reaches_the_disk_before_the_swap_and_the_swap_before_the_deletion(tmp_path, monkeypatch):
    events, opened = [], {}

    def record(name):
        call = getattr(os, name)

        def wrapper(*arguments, **keywords):
            what = opened.get(arguments[0], arguments[0])
            events.append((name, Path(what).name))
            return call(*arguments, **keywords)

        monkeypatch.setattr(os, name, wrapper)

    def remember(call):
        def wrapper(path, *arguments, **keywords):
            handle = call(path, *arguments, **keywords)
            opened[handle if isinstance(handle, int) else handle.fileno()] = path
            return handle

        return wrapper

    write_folder(tmp_path / "a", version(1))
    monkeypatch.setattr(os, "open", remember(os.open))
    monkeypatch.setattr(files, "open", remember(open), raising=False)
    for name in ("rename", "fsync"):
        record(name)
    write_folder(tmp_path / "a", version(2))
    assert events == [
        ("fsync", "config.json"),
        ("fsync", "model.safetensors"),
        ("fsync", ".a.tmp"),
        ("rename", "a"),
        ("rename", ".a.tmp"),
        ("fsync", tmp_path.name),
        ("rename", ".a.old"),
    ]


@pytest.mark.parametrize(
    "text", ["", "{", '{"a": 1', "[1]", "3", "null", '{"a": NaN}', '{"a": -Infinity}', '{"a": 1e999}', "[" * 10**5, "\xff",
             '{"a": 1, "a": 2}', '{"a": {"b": 1, "b": 1}}', '{"a": 18446744073709551616}', '{"a": -' + "9" * 5000 + "}"]
)
def test_a_bad_json_file_is_refused(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_text(text, encoding="latin-1")
    refused(read_json, path)


def test_a_file_too_long_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "config.json"
    with open(path, "wb") as file:
        file.truncate(2**40)                                              # a hole, which takes no room on the disk
    tracemalloc.start()
    assert "bytes" in refused(read_json, path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


@pytest.mark.parametrize("read", [read_json, lambda path: read_tensors(path, SHAPES, "float32")])
def test_no_file_a_folder_and_no_permission(tmp_path, monkeypatch, read):
    assert "does not exist" in refused(read, tmp_path / "missing")
    assert "does not exist" in refused(read, tmp_path / ("long" * 100))
    assert "is a folder" in refused(read, tmp_path)
    path = tmp_path / "secret"
    path.write_bytes(SOUND)

    def deny(*arguments, **keywords):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_text", deny)
    monkeypatch.setattr(files, "safe_open", deny)
    assert "Permission denied" in refused(read, path)


def with_changes(**changes):
    arrays = {name: np.ones(shape, np.float32) for name, shape in SHAPES.items()}
    return {name: array for name, array in (arrays | changes).items() if array is not None}


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        (with_changes(w=None), "'w'"),
        (with_changes(surplus=np.ones(2, np.float32)), "'surplus'"),
        (with_changes(w=np.ones((3, 2), np.float32)), "'w' has shape (3, 2), expected (2, 3)"),
        (with_changes(scale=np.ones(1, np.float32)), "'scale' has shape (1,), expected ()"),
        (with_changes(w=np.ones((2, 3), np.int32)), "'w' is I32"),
        (with_changes(gain=np.float32([1, np.nan, 1])), "'gain' holds NaN or infinity"),
        (with_changes(gain=np.float64([1, 1, -np.inf])), "'gain' holds NaN or infinity"),
        (with_changes(gain=np.float64([1, 1e300, 1])), "'gain' holds NaN or infinity as float32"),
        (with_changes(**{"new\nline": np.ones(1, np.float32)}), "'new\\nline'"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(tmp_path, arrays, says):
    path = tmp_path / "model.safetensors"
    path.write_bytes(save(arrays))
    assert says in refused(read_tensors, path, SHAPES, "float32")


def with_bfloat16(arrays):
    """A file of these float32 arrays, those of two or more dimensions cut to bfloat16: the upper half of each number."""
    header, body = {}, b""
    for name, array in arrays.items():
        bits = array.view("<u4")
        data = (bits >> 16).astype("<u2").tobytes() if array.ndim > 1 else bits.tobytes()
        dtype = "BF16" if array.ndim > 1 else "F32"
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def test_bfloat16_is_read_beside_other_floats(tmp_path):
    rng = np.random.default_rng(0)
    w, gain = rng.standard_normal((2, 3)).astype(np.float32), rng.standard_normal(3).astype(np.float32)
    w[0] = 3e38, -1e-40, 1.0                                              # large, below the smallest normal number, exact
    path = tmp_path / "model.safetensors"
    path.write_bytes(with_bfloat16({"w": w, "gain": gain}))
    read = read_tensors(path, {"w": (2, 3), "gain": (3,)}, "float32")
    assert read["gain"].tobytes() == gain.tobytes()
    assert read["w"].dtype == np.float32 and read["w"].flags.owndata and read["w"].flags.writeable
    assert (read["w"].view("<u4") == w.view("<u4") >> 16 << 16).all()
    np.testing.assert_allclose(read["w"][0, 2:], 1)
    np.testing.assert_allclose(read["w"][1], w[1], rtol=2**-7)

    w[1, 1] = np.nan
    path.write_bytes(with_bfloat16({"w": w, "gain": gain}))
    assert "'w' holds NaN or infinity" in refused(read_tensors, path, {"w": (2, 3), "gain": (3,)}, "float32")
    assert "'w' has shape (2, 3), expected (3, 2)" in refused(read_tensors, path, {"w": (3, 2), "gain": (3,)}, "float32")


@pytest.mark.skipif(os.name == "nt", reason="Windows has other permissions")
def test_files_may_be_read_by_whom_the_system_lets_read_new_files(tmp_path):
    for mask, mode in [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)]:
        previous = os.umask(mask)
        try:
            write_folder(tmp_path / "x", version(1))
        finally:
            os.umask(previous)
        assert {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "x").iterdir()} == dict.fromkeys(version(1), mode)


@pytest.mark.skipif(os.name == "nt", reason="Windows cannot lock a folder")
def test_a_folder_is_held_by_one_process_at_a_time(tmp_path):
    run = tmp_path / "deep" / "run"
    with alone(run):
        with pytest.raises(InputError, match="another process is writing .*run"):
            with alone(run):                                              # opened twice is as good as by another process
                pass
        (run / "file").touch()
    with alone(run):                                                      # it was let go
        pass
    assert (run / "file").exists()
    with pytest.raises(ZeroDivisionError):
        with alone(tmp_path / "new"):
            1 / 0
    assert not (tmp_path / "new").exists()                                # nothing was written there: nothing is left


@pytest.mark.skipif(os.name == "nt", reason="Windows cannot lock a folder")
def test_an_old_folder_that_cannot_be_deleted_is_no_failure(tmp_path, monkeypatch):
    write_folder(tmp_path / "x", version(1))
    monkeypatch.setattr(files.shutil, "rmtree", lambda *_, **__: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    write_folder(tmp_path / "x", version(2))                              # it is saved: so it says
    assert read_version(tmp_path / "x") == 2
    with pytest.raises(InputError, match="could not be saved: Permission denied"):
        write_folder(tmp_path / "x", version(3))
    assert read_version(tmp_path / "x") == 2


def test_a_folder_is_let_go_when_its_holder_is_killed(tmp_path):
    code = f"import pathlib, time; from minimoe.files import alone\nwith alone(pathlib.Path({str(tmp_path / 'run')!r})): print(1, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline()
        with pytest.raises(InputError, match="another process"):
            with alone(tmp_path / "run"):
                pass
        process.kill()
        process.wait()
        with alone(tmp_path / "run"):
            pass


def test_nothing_is_read_before_the_whole_header_is_known_to_be_right(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(save({"a": np.ones(2**20, np.float32), "b": np.ones(2, np.float32)}))
    tracemalloc.start()
    refused(read_tensors, path, {"a": (2**20,), "b": (3,)}, "float32")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


def read_bytes(data):
    """What read_tensors makes of a file of these bytes: refuse it in one line, or return what was expected."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        path.write_bytes(data)
        try:
            loaded = read_tensors(path, SHAPES, "float32")
        except InputError as error:
            assert str(error).startswith(str(path)) and str(error).isprintable()
            return None
    assert {name: array.shape for name, array in loaded.items()} == SHAPES
    assert all(array.dtype == np.float32 and np.isfinite(array).all() for array in loaded.values())
    return loaded


def test_a_file_cut_anywhere_is_refused():
    assert read_bytes(SOUND)["w"].tolist() == [[0, 1, 2], [3, 4, 5]]
    for length in range(len(SOUND)):
        assert read_bytes(SOUND[:length]) is None, length


@pytest.mark.parametrize("length", [0, 1, HEADER - 9, HEADER - 7, len(SOUND), 2**31, 2**63, 2**64 - 1])
def test_a_wrong_header_length_is_refused(length):
    assert read_bytes(struct.pack("<Q", length) + SOUND[8:]) is None


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.integers(0, len(SOUND) - 1), st.integers(0, 255), min_size=1, max_size=3))
def test_flipped_bytes_are_refused_or_load_as_expected(flips):
    data = bytearray(SOUND)
    for place, byte in flips.items():
        data[place] = byte
    read_bytes(bytes(data))


tensor_entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F16", "F32", "F64", "BF16", "I32", "F8_E4M3", "F4", "X"]),
        "shape": st.lists(st.sampled_from([0, 1, 2, 3, 2**40, 2**64, -1]), max_size=3),
        "data_offsets": st.lists(st.integers(0, 40), min_size=2, max_size=2),
    }
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from([*SHAPES, "other"]), tensor_entries | st.none()), st.binary(max_size=40))
def test_forged_headers_are_refused_or_load_as_expected(header, body):
    text = json.dumps(header).encode()
    read_bytes(struct.pack("<Q", len(text)) + text + body)
