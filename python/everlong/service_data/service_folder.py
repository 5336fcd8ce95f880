"""The service's own folder among the memories: records, texts that wait, copies that are sent, what is removed."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import threading
import uuid
from collections.abc import Collection
from pathlib import Path

from everlong.errors import MemoryBusyError

_LOGGER = logging.getLogger("everlong.serve")
_NAMES = (".service", *(f".service-{number}" for number in range(2, 34)))  # no memory's name begins with a dot
_STAYS = ("lock", "audit.log", "service.sqlite3", "service.sqlite3-wal", "service.sqlite3-shm", "spool", "responses")


class ServiceFolder:
    """One process uses it. All names in it are the service's, so what a process that was killed left is removed."""

    def __init__(self, root: Path, *, alone: bool = True) -> None:
        """`root`: the folder of the memories. MemoryBusyError where another service serves them.

        Without `alone` others may: each has a folder of its own, of which nothing stays.
        """
        for name in _NAMES[:1] if alone else _NAMES[1:]:
            path = root / name
            if path.is_symlink():
                raise MemoryBusyError(f"{name} beside the memories is a link: the service wants a folder of its own")
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            held = _held(path / "lock")
            if held is not None:
                self.path, self._held = path, held
                break
        else:
            raise MemoryBusyError("another service serves these memories")
        self._discarding = threading.Lock()
        _clean(self.path, _STAYS if alone else ("lock",))
        self.clean_abandoned()
        self.records, self.audit = self.path / "service.sqlite3", self.path / "audit.log"
        self.spool, self.responses = self.path / "spool", self.path / "responses"
        self.conversations, self.alone = self.path / "conversations", self.path / "alone"
        self.exports, self.trash = self.path / "exports", self.path / "trash"
        for folder in (self.exports, self.trash):
            folder.mkdir(mode=0o700)

    @property
    def is_passing(self) -> bool:
        """Whether nothing of it stays when the service ends."""
        return self.path.name != _NAMES[0]

    def new_in(self, folder: Path) -> Path:
        """Return a path in one of its folders where nothing is."""
        return folder / uuid.uuid4().hex

    def discard(self, path: Path) -> None:
        """Remove a file or a folder in it, unless that was done. Any thread may. OSError where the disk refuses."""
        with self._discarding:
            if path.exists():
                discard(path)

    def empty_trash(self) -> None:
        """Remove what is left of removed memories: a disk may have refused once."""
        for one in list(self.trash.iterdir()):
            try:
                self.discard(one)
            except OSError as error:
                _LOGGER.warning("a removed memory is still on the disk: %s", error.strerror)

    def clean_abandoned(self) -> None:
        """Remove what other services of these memories left when they were killed."""
        for path in self.path.parent.glob(f"{_NAMES[0]}*"):
            if path == self.path or path.name not in _NAMES or path.is_symlink():
                continue
            held = _held(path / "lock")
            if held is not None:
                _clean(path, _STAYS if path.name == _NAMES[0] else ("lock",))
                os.close(held)

    def close(self) -> None:
        if self.is_passing:
            _clean(self.path, ("lock",))
        os.close(self._held)


def _clean(path: Path, stays: Collection[str]) -> None:
    """Remove what is not to stay, and links in the place of what is."""
    for one in path.iterdir():
        if one.name not in stays or one.is_symlink():
            discard(one)


def discard(path: Path) -> None:
    """Remove a file, or a folder with all that it holds."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sync(folder: Path) -> None:
    """Make what was made, renamed and removed in a folder durable."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _held(file: Path) -> int | None:
    """Hold a file for this process. Return its descriptor; None where another process holds it."""
    held = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.lockf(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        return None
    return held
