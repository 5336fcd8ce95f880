"""The memories of a service: a folder of folders, each with a version that changes when the memory does."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from everlong.memory import Memory
from everlong.serve.errors import ApiError
from everlong.serve.names import memory_name

_OWN = ".service"  # no memory's name begins with a dot
_LOOKS = 4  # memories that are open for a look at once
_PATIENCE = 30.0  # seconds that a change waits for another one of the same memory


class Shelf:
    """Which memories there are, and who changes one of them now. Thread-safe."""

    def __init__(self, root: Path, host_bytes: int | None = None) -> None:
        """`host_bytes`: RAM of a memory that is open for a look, or a change; None: half of what is free."""
        self.root, self._host_bytes = root, host_bytes
        self._looks = threading.BoundedSemaphore(_LOOKS)
        self.own = root / _OWN
        self.own.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._versions: dict[str, int] = {}
        self._writers: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()
        self.on_change: list[Callable[[str, bool], None]] = []  # told a memory's name, and whether something is gone

    def names(self) -> list[str]:
        """Return the names of all memories, sorted."""
        with os.scandir(self.root) as listed:
            found = [one.name for one in listed if one.is_dir(follow_symlinks=False) and not one.name.startswith(".")]
        return sorted(name for name in found if Memory.exists(self.root / name))

    def folder(self, name: str) -> Path:
        """Return a memory's folder, whether or not it is there. ApiError for what is no name, and for a link."""
        folder = self.root / memory_name(name)
        if folder.is_symlink():
            raise no_memory(name)
        return folder

    def there(self, name: str) -> Path:
        """Return the folder of a memory. ApiError where there is none."""
        folder = self.folder(name)
        if not Memory.exists(folder):
            raise no_memory(name)
        return folder

    def version(self, name: str) -> int:
        """Return a number that is another one after every change of the memory."""
        with self._lock:
            return self._versions.get(name, 0)

    def changed(self, name: str, *, gone: bool = False) -> None:
        """Note that a memory has changed; `gone`: something was taken out of it, and nobody may see that any more."""
        with self._lock:
            self._versions[name] = self._versions.get(name, 0) + 1
        for tell in self.on_change:
            tell(name, gone)

    @contextlib.contextmanager
    def writing(self, name: str, patience: float = _PATIENCE) -> Iterator[Path]:
        """Wrap a change of a memory: one at a time. ApiError 409 where another one takes too long."""
        folder = self.folder(name)
        with self._lock:
            lock = self._writers.setdefault(name, threading.Lock())
        if not lock.acquire(timeout=patience):
            raise ApiError(409, f"a text is being read into {name!r}: try again later", "memory_busy")
        try:
            yield folder
        finally:
            lock.release()

    @contextlib.contextmanager
    def looking(self, name: str) -> Iterator[Memory]:
        """Open a memory for a look, beside whoever writes. A few looks at once; others wait."""
        folder = self.there(name)
        with self._looks, Memory.open(folder, read_only=True, host_bytes=self._host_bytes) as memory:
            yield memory

    @contextlib.contextmanager
    def changing(self, name: str, *, gone: bool = False) -> Iterator[Memory]:
        """Open a memory to change it, without a model."""
        with self.writing(name), Memory.open(self.there(name), host_bytes=self._host_bytes) as memory:
            yield memory
        self.changed(name, gone=gone)

    def remove(self, name: str) -> None:
        """Remove a memory with all that it holds."""
        with self.writing(name):
            folder = self.there(name)
            hidden = self.own / f"removed-{name}-{os.getpid()}"
            folder.rename(hidden)
        self.changed(name, gone=True)
        shutil.rmtree(hidden, ignore_errors=True)


def no_memory(name: str) -> ApiError:
    """Return the refusal for a memory that is not there, or not for this caller."""
    return ApiError(404, f"there is no memory {name!r}", "memory_not_found")
