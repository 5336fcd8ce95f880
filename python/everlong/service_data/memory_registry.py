"""The memories of a service: a folder of folders."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from everlong.errors import CorruptMemoryError, MemoryBusyError, MemoryNotFoundError
from everlong.memory import Memory
from everlong.service_data.errors import ApiError
from everlong.service_data.names import memory_name
from everlong.service_data.service_folder import sync

_LOCK_TIMEOUT = 30.0  # seconds that a change waits for another one of the same memory
_POLL_SECONDS = 0.02  # seconds between two looks of who waits in the event loop


@dataclasses.dataclass(frozen=True)
class MemoryState:
    """What a memory was when something was taken from it: what is kept of it holds for this state alone."""

    id: str  # the memory's own: another one may take its name
    forgotten: int  # how often something was forgotten in it, by any process
    folder: int = 0  # its folder's inode: a backup may take its place


NO_MEMORY_STATE = MemoryState("", 0)  # of the model without a memory


class _Writer:
    """Who changes a memory now, and how many wait to."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.waiting = 0


class MemoryRegistry:
    """Which memories there are, and who changes one of them now. Thread-safe."""

    def __init__(self, root: Path, host_bytes: int | None = None) -> None:
        """`host_bytes`: RAM of a memory that is open for a look, or a change; None: half of what is free."""
        self.root, self._host_bytes = root, host_bytes
        self._changes: dict[str, int] = {}
        self._writers: dict[str, _Writer] = {}
        self._lock = threading.Lock()

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

    def existing_folder(self, name: str) -> Path:
        """Return the folder of a memory. ApiError where there is none."""
        folder = self.folder(name)
        if not Memory.exists(folder):
            raise no_memory(name)
        return folder

    def id(self, name: str) -> str:
        """Return the own id of a memory. One of an earlier release gets one. ApiError where there is none."""
        try:
            found = Memory.id_of(self.existing_folder(name))
            if not found:
                with contextlib.suppress(MemoryBusyError), self.open_writable(name) as memory:
                    found = memory.give_id()
            return found
        except MemoryNotFoundError:
            raise no_memory(name) from None

    def state(self, name: str) -> MemoryState | None:
        """Return the state of a memory now, whoever changed it; None where there is none."""
        try:
            place = inode_of(self.existing_folder(name))
            with self.open_read_only(name) as memory:
                return MemoryState(memory.id, memory.forgotten_generation, place)
        except (ApiError, FileNotFoundError):
            return None

    def change_count(self, name: str) -> int:
        """Return how often this service has changed the memory of that name."""
        with self._lock:
            return self._changes.get(name, 0)

    def record_change(self, name: str) -> None:
        """Note that a memory has changed."""
        with self._lock:
            self._changes[name] = self._changes.get(name, 0) + 1

    def has_waiting_writer(self, name: str) -> bool:
        """Return whether somebody waits to change a memory that is being changed."""
        with self._lock:
            writer = self._writers.get(name)
            return writer is not None and writer.waiting > 0

    @contextlib.contextmanager
    def write_lock(self, name: str, patience: float = _LOCK_TIMEOUT) -> Iterator[Path]:
        """Wrap a change of a memory: one at a time. The thread waits. ApiError 409 where another takes too long."""
        folder, writer = self.folder(name), self._writer(name)
        with self._count_waiting(writer) if patience > 0 else contextlib.nullcontext():
            if not writer.lock.acquire(timeout=patience):
                raise _busy(name)
        try:
            yield folder
        finally:
            writer.lock.release()

    @contextlib.asynccontextmanager
    async def write_lock_async(self, name: str, patience: float = _LOCK_TIMEOUT) -> AsyncIterator[Path]:
        """Do as `writing` for a request, which holds no thread while it waits. A reading makes room (`is_wanted`)."""
        folder, writer, until = self.folder(name), self._writer(name), time.monotonic() + patience
        with self._count_waiting(writer):
            while not writer.lock.acquire(blocking=False):
                if time.monotonic() > until:
                    raise _busy(name)
                await asyncio.sleep(_POLL_SECONDS)
        try:
            yield folder
        finally:
            writer.lock.release()

    @contextlib.contextmanager
    def open_read_only(self, name: str) -> Iterator[Memory]:
        """Open a memory for a look, beside whoever writes."""
        with self._unless_removed(name), self._opened(name, read_only=True) as memory:
            yield memory

    @contextlib.contextmanager
    def open_writable(self, name: str) -> Iterator[Memory]:
        """Open a memory to change it, without a model, for who has the turn to write."""
        with self._unless_removed(name), self._opened(name, read_only=False) as memory:
            yield memory

    def _opened(self, name: str, *, read_only: bool) -> Memory:
        return Memory.open(self.existing_folder(name), read_only=read_only, host_bytes=self._host_bytes)

    @contextlib.contextmanager
    def _unless_removed(self, name: str) -> Iterator[None]:
        """Have what is missing in a memory that is being removed be that it is not there."""
        place = inode_of(self.existing_folder(name))
        try:
            yield
        except (CorruptMemoryError, FileNotFoundError):
            if not Memory.exists(self.root / name) or inode_of(self.root / name) != place:
                raise no_memory(name) from None
            raise

    def remove(self, name: str, into: Path) -> None:
        """Move a memory out of the shelf, for who has the turn to write: `into` is no folder yet, of the same disk."""
        self.existing_folder(name).rename(into)
        sync(self.root)

    @contextlib.contextmanager
    def _count_waiting(self, writer: _Writer) -> Iterator[None]:
        with self._lock:
            writer.waiting += 1
        try:
            yield
        finally:
            with self._lock:
                writer.waiting -= 1

    def _writer(self, name: str) -> _Writer:
        with self._lock:
            return self._writers.setdefault(name, _Writer())


def inode_of(folder: Path) -> int:
    """Return the number by which the disk knows a memory's folder. ApiError where there is none."""
    try:
        return folder.stat().st_ino
    except FileNotFoundError:
        raise no_memory(folder.name) from None


def no_memory(name: str) -> ApiError:
    """Return the refusal for a memory that is not there, or not for this caller."""
    return ApiError(404, f"there is no memory {name!r}", "memory_not_found")


def memory_changed(name: str) -> ApiError:
    """Return what an answer ends with when something is forgotten in its memory. Clients of OpenAI's ask again."""
    return ApiError(409, f"something was forgotten in {name!r} while it answered: ask again", "memory_changed")


def _busy(name: str) -> ApiError:
    return ApiError(409, f"a text is being read into {name!r}: try again later", "memory_busy")
