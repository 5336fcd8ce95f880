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
from everlong.serve.loaded import Loaded, close_whole
from everlong.serve.shelf import State, inode_of

_LOGGER = logging.getLogger("everlong.serve")

# A memory's state, and how often the service has changed it. None: a folder of the service's own.
Version = tuple[State | None, int]


@dataclasses.dataclass(eq=False)
class Seat:
    """An open MemoryModel, and who uses it."""

    folder: Path
    version: Version  # of the memory when it was opened
    read_only: bool
    mm: MemoryModel
    inode: int  # of the folder when it was opened
    busy: bool = True
    used: float = 0.0


class Seats:
    """For the answering thread alone."""

    def __init__(
        self, loaded: Loaded, most: int, host_bytes: int | None, evicted: Callable[[], None] = lambda: None
    ) -> None:
        """`host_bytes`: RAM of all of them; None: half of what is free now. `evicted` is told of each that is closed
        to make room.
        """
        whole = host_bytes if host_bytes is not None else _core.free_memory_bytes() // 2
        self._loaded, self._most, self._each = loaded, most, whole // most
        self._evicted = evicted
        self._open: list[Seat] = []

    def __len__(self) -> int:
        return len(self._open)

    @property
    def seats(self) -> tuple[Seat, ...]:
        """All that are open."""
        return tuple(self._open)

    def has_idle(self, folder: Path) -> bool:
        """Return whether a memory is open, and nobody uses it."""
        return any(seat.folder == folder and not seat.busy for seat in self._open)

    @contextlib.contextmanager
    def taken(self, folder: Path, version: Version, *, read_only: bool) -> Iterator[Seat]:
        """Wrap the use of a memory by one answer. A reader that is busy is opened a second time.

        What ended with an error is closed, as its frame may be of no use any more.
        """
        seat = self._idle(folder, version, read_only=read_only) or self._new(folder, version, read_only=read_only)
        seat.busy = True
        try:
            yield seat
        except GeneratorExit:
            raise
        except BaseException:
            self._close(seat)
            raise
        finally:
            seat.busy, seat.used = False, time.monotonic()

    def state(self, folder: Path) -> State | None:
        """Return the state of a memory now, as far as an open one tells; None where none is open."""
        for seat in self._open:
            if seat.folder == folder and seat.inode == inode_of(folder):
                return State(Memory.id_of(folder), seat.mm.memory.forgotten_generation, seat.inode)
        return None

    def set_out(self, folder: Path, changes: int) -> State:
        """Open a memory that is about to answer. Return its state; `changes` as in its version."""
        seat = self._new(folder, (None, changes), read_only=True)
        state = State(seat.mm.memory.id, seat.mm.memory.forgotten_generation, seat.inode)
        seat.version, seat.busy, seat.used = (state, changes), False, time.monotonic()
        return state

    def close(self, folder: Path) -> None:
        """Close what is open of a folder, if nobody uses it."""
        for seat in [one for one in self._open if one.folder == folder and not one.busy]:
            self._close(seat)

    def close_all(self) -> None:
        for seat in list(self._open):
            self._close(seat)

    def _idle(self, folder: Path, version: Version, *, read_only: bool) -> Seat | None:
        found = None
        for seat in [one for one in self._open if one.folder == folder and not one.busy]:
            if seat.version != version or seat.read_only != read_only:
                self._close(seat)
            else:
                found = seat
        return found

    def _new(self, folder: Path, version: Version, *, read_only: bool) -> Seat:
        while len(self._open) >= self._most:
            idle = [one for one in self._open if not one.busy]
            if not idle:
                break  # fewer than answers at once: one more for as long as it takes
            self._close(min(idle, key=lambda one: one.used))
            self._evicted()
        inode = inode_of(folder)
        mm = self._loaded.over(folder, read_only=read_only, host_bytes=self._each)
        seat = Seat(folder, version, read_only, mm, inode)
        self._open.append(seat)
        return seat

    def _close(self, seat: Seat) -> None:
        if seat not in self._open:
            return
        self._open.remove(seat)
        try:
            close_whole(seat.mm)
        except Exception as error:  # the others are closed all the same
            _LOGGER.warning("a memory was not closed whole: %s", error)
