"""Folders of files that are never half-written, and readers that refuse whatever is not as expected.

A folder `x` is written beside itself as `.x.tmp`, made durable, and swapped in by renaming. At whatever instant the
process is killed, a whole folder is left to read:

    while .x.tmp fills          x is untouched
    after x -> .x.old           x is missing, .x.old is whole: `recover` renames it back
    after .x.tmp -> x           x is new and whole, .x.old is to spare
    after .x.old -> .x.tmp      x is new and whole, the old folder is deleted under a name nobody reads

So `.x.tmp` is rubbish whenever it is found, and `.x.old` is always whole.
"""

import hashlib
import json
import math
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, deserialize, safe_open
from safetensors.numpy import save_file

from minimoe.errors import InputError

if sys.platform != "win32":
    import fcntl

FLOATS = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}
SUFFIXES = (".json", ".safetensors")
LONGEST_JSON = 2**24  # bytes; a config is some hundred


def write_folder(folder: str | Path, files: Mapping[str, object]) -> None:
    """Make `folder` hold exactly `files`, all at once: another reader sees the old files or the new ones, for an instant none.

    `files` maps `*.safetensors` to a dict of arrays (any strides) and `*.json` to what JSON can say. If anything fails
    the old folder stays. Raises `InputError` if the disk is full or fails, and if `folder` is a file, or holds anything but
    *.json and *.safetensors files, which a swap would delete.
    """
    folder, new, old = _siblings(folder)
    try:
        recover(folder)
        refuse_strangers(folder)
        _fill_and_swap(folder, new, old, files)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{folder} could not be saved: {reason}; nothing saved before is lost") from error


def _fill_and_swap(folder: Path, new: Path, old: Path, files: Mapping[str, object]) -> None:
    try:
        _clear(new, old)
        new.mkdir(parents=True)
        for name, content in files.items():
            _write(new / name, content)
        _sync_folder(new)
        _swap(folder, new, old)
        _sync_folder(folder.parent)
        with suppress(OSError):    # the new folder is there and whole; the next write deletes the old one, or says why not
            _clear(new, old)
    except BaseException:
        recover(folder)
        shutil.rmtree(new, ignore_errors=True)  # a full disk needs the room
        raise


def _swap(folder: Path, new: Path, old: Path) -> None:
    while True:
        if folder.exists():
            os.rename(folder, old)
        try:
            return os.rename(new, folder)
        except OSError:
            if not folder.exists():  # else a reader thought that we were killed, and brought the old folder back
                raise


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all; a link in its place is replaced."""
    scratch = path.with_name(f".{path.name}.tmp")
    try:
        scratch.unlink(missing_ok=True)  # a link would lead elsewhere
        with open(scratch, "x", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def recover(folder: str | Path) -> None:
    """Bring back the old folder if a write was killed in the middle of its swap. Call it before reading."""
    folder, _, old = _siblings(folder)
    if os.path.exists(old) and not folder.exists():    # os.path: a name too long for `old` is no error
        try:
            os.rename(old, folder)
        except OSError:
            if not folder.exists():  # else the writer was alive, and has done the swap
                raise


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold `folder`, made if it is not there, against other processes that would write there too.

    However this one ends, the system lets go. Raises `InputError` if another holds it. On Windows, which cannot lock a
    folder, nothing is held.
    """
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    handle = _lock(folder)
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)
        if made and folder.is_dir() and not any(folder.iterdir()):    # nothing came of it
            folder.rmdir()


def _lock(folder: Path) -> int | None:
    if sys.platform == "win32":
        return None
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise InputError(f"another process is writing {folder}; wait for its end, or choose another --out") from None
    except OSError:    # a file system without locks
        pass
    return handle


def first_there(folders: Sequence[str]) -> str:
    """Return the first of the folders that exists: what was trained here before what came with the repository."""
    for folder in folders:
        recover(folder)
    return next((folder for folder in folders if os.path.exists(folder)), folders[0])


def read_json(path: str | Path) -> dict:
    """Return the object in a JSON file. Raises `InputError`, naming the file, if there is none to be read.

    Refused too: what JSON leaves open (NaN, a key given twice), numbers beyond 64 bits, and a file too long to be ours.
    """
    _require_file(path, "a JSON file")
    try:
        if os.path.getsize(path) > LONGEST_JSON:
            raise ValueError(f"more than {LONGEST_JSON:,} bytes")
        text = Path(path).read_text(encoding="utf-8")
        content = json.loads(text, object_pairs_hook=_object, parse_int=_integer, parse_float=_finite, parse_constant=_finite)
    except OSError as error:
        raise _unreadable(path, error) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is cut or is not JSON as saved here ({error}); save or copy it again") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} must hold a JSON object, not a {type(content).__name__}")
    return content


def read_tensors(path: str | Path, expected: Mapping[str, tuple[int, ...]], dtype, some: bool = False) -> dict[str, np.ndarray]:
    """Return the tensors of a safetensors file, which must be those `expected`, name -> shape; with `some`, or some of them.

    They are arrays of `dtype`, writable, each owning its memory; the file holds floats of 16, 32 or 64 bits. Raises
    `InputError`, naming the file and the tensor, for a file that is missing, unreadable, cut or corrupt, a tensor
    missing, unexpected, of another shape, not of floats, or with NaN or infinity in it (in `dtype`). Nothing is read
    before every name, shape and dtype in the file's header is as expected, so no header can ask for memory.
    """
    _require_file(path, f"a safetensors file of {len(expected)} tensors")
    try:
        with safe_open(path, framework="numpy") as file:
            found = set(file.keys())
            if some:
                expected = {name: shape for name, shape in expected.items() if name in found}
            _check_header(path, file, found, expected)
            if any(file.get_slice(name).get_dtype() == "BF16" for name in expected):
                content = dict(deserialize(Path(path).read_bytes()))
                return {name: _to_dtype(path, name, _from_bytes(**content[name]), dtype) for name in expected}
            return {name: _to_dtype(path, name, file.get_tensor(name), dtype) for name in expected}
    except OSError as error:
        raise _unreadable(path, error) from error
    except SafetensorError as error:
        raise InputError(f"{path} is cut, corrupt or not a safetensors file; save or copy it again") from error


def sha256(path: str | Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def require_size(path: str | Path, numbers: int) -> None:
    """Raise `InputError` for a file too short for so many numbers, so that no config beside it can ask for memory."""
    _require_file(path, f"a safetensors file of {numbers:,} numbers")
    if (size := os.path.getsize(path)) < numbers:
        raise InputError(f"{path} has {size:,} bytes, too few for the {numbers:,} numbers that config.json beside it asks for")


def _check_header(path, file, found: set[str], expected: Mapping[str, tuple[int, ...]]) -> None:
    for name in expected:
        if name not in found:
            raise InputError(f"{path} lacks the tensor {name!r}; it was saved from another model")
    for name in sorted(found):
        if name not in expected:
            raise InputError(f"{path} has a tensor {name!r} too many; it was saved from another model")
        tensor = file.get_slice(name)
        shape = tuple(tensor.get_shape())
        if shape != tuple(expected[name]):
            raise InputError(f"{path}: tensor {name!r} has shape {shape}, expected {tuple(expected[name])}")
        if tensor.get_dtype() not in FLOATS:
            kinds = ", ".join(FLOATS.values())
            raise InputError(f"{path}: tensor {name!r} is {tensor.get_dtype()}; convert it to one of {kinds}")


def _from_bytes(dtype: str, shape: list[int], data: bytearray) -> np.ndarray:
    """Return what safetensors cannot: NumPy has no bfloat16, which is the upper half of a float32."""
    if dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4").reshape(shape)
    return np.frombuffer(data, np.dtype(FLOATS[dtype]).newbyteorder("<")).reshape(shape)


def _to_dtype(path, name: str, array: np.ndarray, dtype) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):  # too large for dtype: infinity, refused below, as NaN is
        array = np.array(array, dtype=dtype)
    if not np.isfinite(array).all():
        raise InputError(f"{path}: tensor {name!r} holds NaN or infinity as {array.dtype}; use an earlier checkpoint")
    return array


def _require_file(path, expected: str) -> None:
    if os.path.isdir(path):
        raise InputError(f"{path} is a folder; expected {expected} there")
    if not os.path.isfile(path):
        raise InputError(f"{path} does not exist or is out of reach; expected {expected} there")


def _unreadable(path, error: OSError) -> InputError:
    return InputError(f"{path} cannot be read: {error.strerror or error}")


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("a key is there twice")
    return content


def _integer(text: str) -> int:
    if abs(value := int(text)) >= 2**64:
        raise ValueError(f"{value} is too large")
    return value


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is not a number")
    return value


def _siblings(folder: str | Path) -> tuple[Path, Path, Path]:
    """Return the folder itself, links followed, the name it is written under, and the one it waits under to be replaced."""
    folder = Path(os.path.realpath(folder))
    return folder, folder.parent / f".{folder.name}.tmp", folder.parent / f".{folder.name}.old"


def refuse_strangers(folder: Path) -> None:
    """Raise `InputError` if `write_folder` would delete something in `folder` that it did not write."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; move it away, or save to another folder")
    for entry in folder.iterdir() if folder.exists() else ():
        if entry.suffix not in SUFFIXES or not entry.is_file():
            raise InputError(f"{folder} holds {entry.name!r}, which saving would delete; move it, or save elsewhere")


def _clear(new: Path, old: Path) -> None:
    _delete(new)
    if os.path.lexists(old):
        os.rename(old, new)  # first: a kill while deleting must not leave half a folder that `recover` trusts
        _delete(new)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _write(path: Path, content) -> None:
    if path.suffix == ".safetensors":
        # order="C" copies a view that is not contiguous: safetensors takes the raw buffer, whatever its strides.
        path.touch()
        mode = path.stat().st_mode
        save_file({name: np.asarray(array, order="C") for name, array in content.items()}, path)
        path.chmod(mode)    # as of any new file: safetensors lets only the owner read
    elif path.suffix == ".json":
        path.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8", newline="\n")
    else:
        raise ValueError(f"{path.name}: a folder holds {' and '.join(SUFFIXES)} files only")
    with open(path, "r+b") as file:
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # Windows cannot open a folder to sync it
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
