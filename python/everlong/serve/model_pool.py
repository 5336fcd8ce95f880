"""The MemoryModels that are open to answer: few at once, the least recently used is closed first."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import everlong._core as _core
from everlong.generation.memory_model import MemoryModel
from everlong.memory import Memory
from everlong.serve.loaded_model import LoadedModel, close_with_memory
from everlong.service_data.memory_registry import MemoryState, inode_of

_LOGGER = logging.getLogger("everlong.serve")

# A memory's state, and how often the service has changed it. None: a folder of the service's own.
Version = tuple[MemoryState | None, int]


@dataclasses.dataclass(eq=False)
class PooledModel:
    """An open MemoryModel, and who uses it."""

    folder: Path
    version: Version  # of the memory when it was opened
    read_only: bool
    mm: MemoryModel
    inode: int  # of the folder when it was opened
    in_use: bool = True
    last_used: float = 0.0


class ModelPool:
    """For the answering thread alone."""

    def __init__(
        self, loaded_model: LoadedModel, most: int, host_bytes: int | None, evicted: Callable[[], None] = lambda: None
    ) -> None:
        """`host_bytes`: RAM of all of them; None: half of what is free now. `evicted` is told of each that is closed
        to make room.
        """
        whole = host_bytes if host_bytes is not None else _core.free_memory_bytes() // 2
        self._loaded, self._most, self._each = loaded_model, most, whole // most
        self._evicted = evicted
        self._open: list[PooledModel] = []

    def __len__(self) -> int:
        return len(self._open)

    @property
    def models(self) -> tuple[PooledModel, ...]:
        """All that are open."""
        return tuple(self._open)

    def has_idle(self, folder: Path) -> bool:
        """Return whether a memory is open, and nobody uses it."""
        return any(pooled.folder == folder and not pooled.in_use for pooled in self._open)

    @contextlib.contextmanager
    def acquire(self, folder: Path, version: Version, *, read_only: bool) -> Iterator[PooledModel]:
        """Wrap the use of a memory by one answer. A reader that is busy is opened a second time.

        What ended with an error is closed, as its frame may be of no use any more.
        """
        pooled = self._idle(folder, version, read_only=read_only) or self._new(folder, version, read_only=read_only)
        pooled.in_use = True
        try:
            yield pooled
        except GeneratorExit:
            raise
        except BaseException:
            self._close(pooled)
            raise
        finally:
            pooled.in_use, pooled.last_used = False, time.monotonic()

    def state(self, folder: Path) -> MemoryState | None:
        """Return the state of a memory now, as far as an open one tells; None where none is open."""
        for pooled in self._open:
            if pooled.folder == folder and pooled.inode == inode_of(folder):
                return MemoryState(Memory.id_of(folder), pooled.mm.memory.forgotten_generation, pooled.inode)
        return None

    def preload(self, folder: Path, changes: int) -> MemoryState:
        """Open a memory that is about to answer. Return its state; `changes` as in its version."""
        pooled = self._new(folder, (None, changes), read_only=True)
        state = MemoryState(pooled.mm.memory.id, pooled.mm.memory.forgotten_generation, pooled.inode)
        pooled.version, pooled.in_use, pooled.last_used = (state, changes), False, time.monotonic()
        return state

    def close(self, folder: Path) -> None:
        """Close what is open of a folder, if nobody uses it."""
        for pooled in [one for one in self._open if one.folder == folder and not one.in_use]:
            self._close(pooled)

    def close_all(self) -> None:
        for pooled in list(self._open):
            self._close(pooled)

    def _idle(self, folder: Path, version: Version, *, read_only: bool) -> PooledModel | None:
        found = None
        for pooled in [one for one in self._open if one.folder == folder and not one.in_use]:
            if pooled.version != version or pooled.read_only != read_only:
                self._close(pooled)
            else:
                found = pooled
        return found

    def _new(self, folder: Path, version: Version, *, read_only: bool) -> PooledModel:
        while len(self._open) >= self._most:
            idle = [one for one in self._open if not one.in_use]
            if not idle:
                break  # fewer than answers at once: one more for as long as it takes
            self._close(min(idle, key=lambda one: one.last_used))
            self._evicted()
        inode = inode_of(folder)
        mm = self._loaded.open_memory(folder, read_only=read_only, host_bytes=self._each)
        pooled = PooledModel(folder, version, read_only, mm, inode)
        self._open.append(pooled)
        return pooled

    def _close(self, pooled: PooledModel) -> None:
        if pooled not in self._open:
            return
        self._open.remove(pooled)
        try:
            close_with_memory(pooled.mm)
        except Exception as error:  # the others are closed all the same
            _LOGGER.warning("a memory was not closed whole: %s", error)
