"""Who may do what: API keys, of which the file holds hashes alone."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import hmac
import json
import os
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from everlong.service_data.errors import ApiError, too_many
from everlong.service_data.names import memory_name
from everlong.service_data.service_folder import sync

_PREFIX = "el-"
_ANY = "*"


@dataclasses.dataclass(frozen=True)
class Key:
    """What the bearer of a key may do."""

    name: str  # in logs, and in the tag of what it wrote
    hash: str = ""  # SHA-256, in hexadecimal digits
    memories: tuple[str, ...] = (_ANY,)  # "*" is all of them
    write: bool = True
    tokens_per_minute: int | None = None  # read and generated
    max_bytes: int | None = None  # on disk, of what it wrote, in all memories
    keep_seconds: float | None = None  # what it wrote is forgotten after that

    def may_see(self, memory: str) -> bool:
        return _ANY in self.memories or memory in self.memories

    @property
    def tag(self) -> str:
        """The tag of the blocks that it wrote."""
        return f"by:{self.name}"


ANYONE = Key("local")  # who comes without a key, where no keys are asked for


class Keys:
    """The keys of a service, and how many tokens each had in this minute. Thread-safe."""

    def __init__(self, keys: tuple[Key, ...], clock: Callable[[], float] = time.monotonic) -> None:
        """`keys`: without any, everyone is `ANYONE`. `clock`: seconds, which the minutes are counted by."""
        self.all = keys
        self._clock = clock
        self._used: dict[str, tuple[float, int]] = {}  # since when, and how many
        self._lock = threading.Lock()

    def bearer(self, header: str | None) -> Key:
        """Return whose key an Authorization header has. ApiError 401 for none."""
        if not self.all:
            return ANYONE
        scheme, _, given = (header or "").partition(" ")
        digest = hash_of(given.strip()) if scheme.lower() == "bearer" else ""
        found: Key | None = None
        for key in self.all:  # all of them, however soon one fits: the time tells nothing
            if hmac.compare_digest(key.hash, digest):
                found = key
        if found is None:
            raise ApiError(401, "no such API key: expected Authorization: Bearer KEY", "invalid_api_key")
        return found

    def require_tokens(self, key: Key) -> None:
        """Raise ApiError 429 where the key had all its tokens of this minute."""
        if not self.has_tokens(key):
            with self._lock:
                since, _ = self._minute(key)
            wait = 60 - (self._clock() - since)
            raise too_many(f"the key had its {key.tokens_per_minute:,} tokens of this minute", wait)

    def reserve(self, key: Key, tokens: int) -> None:
        """Count tokens before they are generated. ApiError 429 where the key had all its tokens of this minute."""
        with self._lock:  # of several at once one is the last that may
            since, used = self._minute(key)
            if key.tokens_per_minute is None or used < key.tokens_per_minute:
                self._used[key.name] = (since, used + tokens)
                return
        self.require_tokens(key)

    def has_tokens(self, key: Key) -> bool:
        """Return whether the key has tokens left in this minute."""
        with self._lock:
            return key.tokens_per_minute is None or self._minute(key)[1] < key.tokens_per_minute

    def count(self, key: Key, tokens: int) -> None:
        with self._lock:
            since, used = self._minute(key)
            self._used[key.name] = (since, max(0, used + tokens))

    def used(self, key: Key) -> int:
        """Return how many tokens the key had in this minute."""
        with self._lock:
            return self._minute(key)[1]

    def _minute(self, key: Key) -> tuple[float, int]:
        now = self._clock()
        since, used = self._used.get(key.name, (now, 0))
        return (since, used) if now - since < 60 else (now, 0)


def hash_of(secret: str) -> str:
    """Return the hash of a key. Keys are 256 random bits, so a slow hash would add nothing."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def load_keys(file: Path) -> Keys:
    """Load keys from a file of JSON. ValueError names what is wrong with it."""
    try:
        keys = tuple(map(_key_of, _rows(file)))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{file}: {error}") from None
    names = [key.name for key in keys]
    if not keys or len(set(names)) < len(names):
        raise ValueError(f"{file}: expected at least one key, each with a name of its own")
    return Keys(keys)


def add_key(file: Path, name: str, **may: Any) -> str:
    """Make a key, add its hash to the file, and return it: nobody can read it there again.

    Any number of threads and processes may, at the same time.
    """
    secret = _PREFIX + secrets.token_urlsafe(32)
    key = _key_of({"name": name, "hash": hash_of(secret), **may})
    row = {field: value for field, value in dataclasses.asdict(key).items() if value is not None}
    file = Path(os.path.realpath(file))
    with _changing(file):
        rows = _rows(file) if file.exists() else []
        if any(one.get("name") == name for one in rows):
            raise ValueError(f"{file} has a key {name!r}: take that out first, or choose another name")
        beside = file.with_name(file.name + ".new")
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w") as written:
            json.dump({"keys": [*rows, row]}, written, indent=2)
            _own_alike(written.fileno(), file)
            written.flush()
            os.fsync(written.fileno())
        beside.replace(file)
        sync(file.parent)
    return secret


@contextlib.contextmanager
def _changing(file: Path) -> Iterator[None]:
    """Wrap a look at a file and its replacement, so that nobody else's comes in between.

    What is locked stands beside it: the file itself is another one afterwards.
    """
    lock = os.open(file.with_name(file.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        _own_alike(lock, file)
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _own_alike(descriptor: int, file: Path) -> None:
    """Give an open file the owner, the group and the rights of one that is there: a service reads what root adds to."""
    with contextlib.suppress(FileNotFoundError, PermissionError):
        about = file.stat()
        os.fchown(descriptor, about.st_uid, about.st_gid)
        os.fchmod(descriptor, stat.S_IMODE(about.st_mode))


def _rows(file: Path) -> list[dict[str, Any]]:
    """Return what a file says of its keys. ValueError for one that is damaged."""
    try:
        rows = json.loads(file.read_bytes())["keys"]
        if isinstance(rows, list) and all(isinstance(row, dict) for row in rows):
            return rows
        wrong: object = "it has something else"
    except (KeyError, TypeError, ValueError) as error:
        wrong = error
    raise ValueError(f'{file}: expected {{"keys": [{{"name": ..., "hash": ...}}]}}: {wrong}')


def _key_of(row: Mapping[str, Any]) -> Key:
    names = {field.name for field in dataclasses.fields(Key)}
    if unknown := sorted(set(row) - names):
        raise ValueError(f"there is no {unknown[0]!r}, but {', '.join(sorted(names))}")
    key = Key(**{**row, "memories": tuple(row.get("memories", (_ANY,)))})
    memory_name_or_all = [memory for memory in key.memories if memory != _ANY]
    try:
        for memory in (key.name, *memory_name_or_all):
            memory_name(memory)
    except ApiError as error:
        raise ValueError(error.message) from None
    if len(key.hash) != 64 or set(key.hash) - set("0123456789abcdef"):
        raise ValueError(f"the hash of {key.name!r} is no SHA-256 in hexadecimal digits")
    if not isinstance(key.write, bool):
        raise ValueError(f"write of {key.name!r} is {key.write!r}, expected true or false")
    for field in ("tokens_per_minute", "max_bytes", "keep_seconds"):
        value = getattr(key, field)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value <= 0):
            raise ValueError(f"{field} of {key.name!r} is {value!r}, expected a number above 0")
    return key
