"""What was made of model files, kept in the cache: tokenizers of GGUF files, and files that were unpacked for a dtype.

An entry is a folder in `$EVERLONG_CACHE/models`, named after the hash of what it was made of. Its `entry.json`
lists its files with their hashes. It is written aside and renamed, under a lock. Whoever loads from it holds the lock,
too, so that it is not removed meanwhile. What is no whole entry is made anew. The entries used least recently go when
all would take more than `$EVERLONG_CACHE_GB`, by default 20.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import math
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from everlong.models.profiles import cache_folder

LIMIT_VARIABLE = "EVERLONG_CACHE_GB"
_DEFAULT_GB = 20
_SEAL = "entry.json"
_MOST_PLACES = 8  # places of one file that are remembered
_LOCK = ".lock"
_LEFT_FREE = 1 << 30  # bytes of the disk that an entry never takes


@dataclasses.dataclass(frozen=True)
class Entry:
    """One entry of the cache."""

    name: str
    source: str  # the file that it was made of; empty where that is unknown
    kind: str  # what was made of it, and what with
    bytes: int
    used: float  # when it was used last, in seconds since 1970; 0 for what is no whole entry


def models_folder() -> pathlib.Path:
    return cache_folder() / "models"


def limit_bytes() -> int:
    """Return how many bytes all entries may take. ValueError where the environment's figure is none."""
    value = os.environ.get(LIMIT_VARIABLE) or str(_DEFAULT_GB)
    try:
        gigabytes = float(value)
    except ValueError:
        gigabytes = math.nan
    if not 0 <= gigabytes < math.inf:
        raise ValueError(f"{LIMIT_VARIABLE} is {value!r}: expected how many GB the cache may take, such as 20 or 0.5")
    return int(gigabytes * 1e9)


def entries() -> list[Entry]:
    """Return all entries, the one used last first. What a crash left is among them."""
    found = [_entry(models_folder() / name) for name in _names()]
    return sorted(found, key=lambda entry: (-entry.used, entry.name))


def clear() -> list[Entry]:
    """Remove every entry that nobody is loading from. Return what was removed."""
    return [entry for entry in entries() if _removed(entry.name)]


@contextlib.contextmanager
def entry_of(
    file: pathlib.Path,
    kind: str,
    bytes_of: Callable[[], int],
    write: Callable[[pathlib.Path], None],
    part: bytes | None = None,
) -> Iterator[pathlib.Path | None]:
    """Context manager: the folder with what `write` makes of a file, None where the cache cannot keep it.

    `kind` says what is made, and what with, in a name without dots. `bytes_of` tells how much that is: no more than the
    limit is kept. `write` gets an empty folder, and is called only if there is no whole entry. Two processes make it
    once. Where it is made of a `part` of the file alone, that part is hashed, and files that share it share the entry.
    """
    limit = limit_bytes()
    with contextlib.ExitStack() as held:
        try:
            place = None if part is not None else [str(file), *_identity(file)]
            digest = _digest(file) if part is None else hashlib.sha256(part).hexdigest()
            folder = models_folder() / f"{digest[:32]}-{kind}"
            lock = held.enter_context(_open_lock(folder.name))
            fcntl.flock(lock, fcntl.LOCK_SH)
            if not _is_whole(folder, digest):
                fcntl.flock(lock, fcntl.LOCK_EX)
            there: pathlib.Path | None = folder
        except OSError:  # no cache can be written here
            there = None
        if there is not None and not _is_whole(there, digest):
            there = there if _made(there, file, digest, limit, bytes_of, write) else None
        if there is not None:
            _used(there, place)
        yield there


def _made(
    folder: pathlib.Path,
    file: pathlib.Path,
    digest: str,
    limit: int,
    bytes_of: Callable[[], int],
    write: Callable[[pathlib.Path], None],
) -> bool:
    """Make an entry whose lock is held, and return whether it could be kept."""
    needed = bytes_of()
    if needed > limit:
        return False
    try:
        _delete(folder.name)
        _make_room(limit - needed)
        if shutil.disk_usage(folder.parent).free < needed + _LEFT_FREE:
            return False
        aside = pathlib.Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            write(aside)
            files = {path.name: {"sha256": _written(path), "identity": _identity(path)} for path in _files(aside)}
            made = {"name": folder.name, "sha256": digest, "source": str(file), "read_from": [], "files": files}
            _write_seal(aside, made)
            aside.rename(folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except OSError:  # as of a full disk
        return False
    return True


def _is_whole(folder: pathlib.Path, digest: str) -> bool:
    """Return whether an entry is what was made of the file with that hash, with nothing lost, changed or added.

    A file that is as old, as large and where it was counts as it was. Others, as in a copied cache, are hashed.
    """
    seal = _seal(folder)
    try:
        listed, there = dict(seal["files"]), {path.name: path for path in _files(folder)}
        if (seal["name"], seal["sha256"]) != (folder.name, digest) or there.keys() != listed.keys():
            return False
        moved = [name for name, path in there.items() if _identity(path) != listed[name]["identity"]]
        if any(_sha256(there[name]) != listed[name]["sha256"] for name in moved):
            return False
        if moved:
            for name in moved:
                listed[name] = {**listed[name], "identity": _identity(there[name])}
            _write_seal(folder, {**seal, "files": listed})
    except (OSError, KeyError, TypeError, ValueError):
        return False
    return True


def _digest(file: pathlib.Path) -> str:
    """Return the SHA-256 of a file, as an entry remembers it of this very file, or else computed."""
    identity = [str(file), *_identity(file)]
    for name in _names():
        seal = _seal(models_folder() / name)
        places, digest = seal.get("read_from"), seal.get("sha256")
        if isinstance(places, list) and identity in places and isinstance(digest, str):
            return digest
    return _sha256(file)


def _used(folder: pathlib.Path, place: list[Any] | None) -> None:
    """Note that an entry is in use now, and for which file it need not be hashed again: as it was before it was."""
    with contextlib.suppress(OSError):
        seal = _seal(folder)
        if place is None or place in seal["read_from"]:
            os.utime(folder / _SEAL)
        else:
            _write_seal(folder, {**seal, "read_from": [place, *seal["read_from"]][:_MOST_PLACES]})


def _make_room(limit: int) -> None:
    """Remove the entries used least recently until the others take no more than `limit` bytes."""
    kept = entries()
    total = sum(entry.bytes for entry in kept)
    for entry in reversed(kept):
        if total <= limit and entry.used:
            break
        if _removed(entry.name):
            total -= entry.bytes


def _removed(name: str) -> bool:
    """Remove an entry unless it is in use. Return whether it was removed."""
    try:
        with _open_lock(name) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _delete(name)
    except OSError:
        return False
    return True


def _delete(name: str) -> None:
    """Delete an entry whose lock is held, and what crashes left of it."""
    for folder in (models_folder() / name, *models_folder().glob(f".{name}.*")):
        if folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder)
        else:
            folder.unlink(missing_ok=True)


def _names() -> list[str]:
    """Return the names of all entries, whole or not."""
    try:
        found = [path.name for path in models_folder().iterdir()]
    except OSError:
        return []
    return sorted({name.lstrip(".").split(".")[0] for name in found if not name.endswith(_LOCK)})


def _entry(folder: pathlib.Path) -> Entry:
    """Return what is known of an entry and of what crashes left of it."""
    seal, kind = _seal(folder), folder.name.partition("-")[2]
    with contextlib.suppress(OSError):
        parts = (folder, *folder.parent.glob(f".{folder.name}.*"))
        taken = sum(path.stat().st_size for part in parts for path in part.rglob("*") if path.is_file())
        used = (folder / _SEAL).stat().st_mtime if seal else 0.0
        return Entry(folder.name, str(seal.get("source", "")), kind, taken, used)
    return Entry(folder.name, "", kind, 0, 0.0)


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for path in folder.iterdir() if path.name != _SEAL)


def _seal(folder: pathlib.Path) -> dict[str, Any]:
    """Return what an entry says of itself; nothing for what is damaged or none."""
    try:
        said = json.loads((folder / _SEAL).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) and isinstance(said.get("read_from"), list) else {}


def _write_seal(folder: pathlib.Path, seal: dict[str, Any]) -> None:
    descriptor, written = tempfile.mkstemp(prefix=f".{folder.name.lstrip('.')}.", dir=folder.parent)
    with os.fdopen(descriptor, "w", encoding="utf-8") as out:
        json.dump(seal, out, indent=1)
        out.flush()
        os.fsync(out.fileno())
    os.replace(written, folder / _SEAL)


def _identity(file: pathlib.Path) -> list[int]:
    """Return what is another where a file was replaced, written to or moved."""
    stat = file.stat()
    return [stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]


def _written(file: pathlib.Path) -> str:
    """Return the hash of a new file, once its bytes are on the disk."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
    return _sha256(file)


def _sha256(file: pathlib.Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _open_lock(name: str) -> Any:
    models_folder().mkdir(parents=True, exist_ok=True)
    return (models_folder() / f"{name}{_LOCK}").open("ab")
