"""Pages on their way from a memory into a cache, layer by layer.

The disk reads what later layers need while a forward computes earlier ones. Each layer of the forward waits for its own
keys and values alone. On a GPU the copies of the next layers run beside it, too (frame/transfer.py).
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import torch

import everlong._core as _core
from everlong.errors import MemoryBusyError


@dataclasses.dataclass(frozen=True)
class Run:
    """Tokens of an archived page, and where they go."""

    page: _core.PageRef
    first_token: int  # the first token, counted in the page
    tokens: int
    slot: int  # slot of the first token
    position: int  # position of the first token in the frame
    temperature: float = 1.0  # its keys are divided by this


@dataclasses.dataclass(frozen=True)
class LayerGroup:
    """Some layers of some pages, which are read, copied and decoded at once."""

    layers: range
    codec: str
    runs: Sequence[Run]
    bytes: int


@dataclasses.dataclass(frozen=True)
class LoadTiming:
    """When a part arrived, in seconds since its recall began. Layers are counted as in the cache's buffers."""

    first_layer: int
    last_layer: int
    bytes: int
    started: float  # the disk was asked for it
    needed: float  # a forward came to its first layer, or nothing else was left to do
    read: float  # its bytes were there
    written: float  # the forward could go on: it was decoded; on a GPU that was enqueued


@dataclasses.dataclass(frozen=True)
class LayerRead:
    """A part that is being read."""

    part: LayerGroup
    staged: _core.StagingBuffer
    table: torch.Tensor  # int64 [runs, 6], as `ops.restore_kv` reads it
    reads: _core.PendingReads  # reads that fill the buffer
    started: float


class PageLoad:
    """Pages on their way. For one thread at a time."""

    def __init__(
        self,
        plan: Callable[[int], Iterator[LayerGroup]],
        start: Callable[[LayerGroup], LayerRead],
        write: Callable[[LayerRead], None],
        most_bytes: int,
    ) -> None:
        """plan: what is to be read from a layer on, in order of layers. most_bytes: that are read ahead."""
        self._plan, self._start, self._write, self._most_bytes = plan, start, write, most_bytes
        self._begun = time.perf_counter()
        self._parts: deque[LayerGroup] = deque()
        self._reading: deque[LayerRead] = deque()
        self._coded_anew: int | None = None  # the layer that was last begun again
        self.arrived: list[LoadTiming] = []
        try:
            self._begin(0)
        except MemoryBusyError:  # a compaction codes a block anew meanwhile
            self._begin(0)

    def until(self, layer: int) -> None:
        """Return once the keys and values of a layer, and of those before it, are in their slots.

        Layers are counted as in the cache's buffers. MemoryNotFoundError where a page is not there (any more).
        """
        needed = time.perf_counter()
        while self._reading and self._reading[0].part.layers.start <= layer:
            self._take_next(needed)

    def settle(self) -> None:
        """Return once all is in its slots."""
        needed = time.perf_counter()
        while self._reading:
            self._take_next(needed)

    def _take_next(self, needed: float) -> None:
        first = self._reading[0]
        try:
            first.reads.wait()
            self._reading.popleft()
            read = time.perf_counter()
            self._read_ahead()
        except MemoryBusyError:
            layer = first.part.layers.start
            if self._coded_anew == layer:
                raise
            self._coded_anew = layer
            self._begin(layer)
            return
        self._write(first)
        times = (at - self._begun for at in (first.started, needed, read, time.perf_counter()))
        layers = first.part.layers
        self.arrived.append(LoadTiming(layers[0], layers[-1], first.part.bytes, *times))

    def _begin(self, layer: int) -> None:
        self._reading.clear()
        self._parts = deque(self._plan(layer))
        self._read_ahead()

    def _read_ahead(self) -> None:
        """Have the disk read what comes next, as far as it may."""
        under_way = sum(reading.part.bytes for reading in self._reading)
        while self._parts and (not self._reading or under_way + self._parts[0].bytes <= self._most_bytes):
            self._reading.append(self._start(self._parts[0]))
            under_way += self._parts.popleft().bytes
