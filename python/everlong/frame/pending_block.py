"""Blocks on their way from the frame into the memory, which may take them while the frame reads on."""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import everlong._core as _core
from everlong.frame.part import Hidden
from everlong.frame.stream import Stream
from everlong.frame.transfer import Archived
from everlong.frame.zones import Zones

# One is copied out of a GPU while the one before is stored. Each takes its bytes on the device.
_MOST = 2


@dataclasses.dataclass(frozen=True, eq=False)
class PendingBlock:
    """A closed block: what is stored of it, and what observers are told."""

    action: _core.Archive
    stream: int
    ids: torch.Tensor  # int64 [n] on the CPU
    hidden: Hidden  # of the layers that are kept until a block is archived
    payload: Callable[[], Archived]  # waits for the bytes; any thread may call it, once
    source: str = ""
    tags: tuple[str, ...] = ()
    created_at: float | None = None  # in seconds since 1970; None: when it was labelled
    tensors: Mapping[str, npt.NDArray[Any]] = dataclasses.field(default_factory=dict)

    @classmethod
    def snapshot(cls, stream: Stream, zones: Zones, action: _core.Archive, rolling_begin: int) -> PendingBlock:
        """Take what the frame has of a block, which is about to leave."""
        ids, hidden = stream.ids(action.begin, action.end), stream.hidden(action.begin, action.end)
        return cls(action, stream.os.stream, ids, hidden, zones.payload(action, rolling_begin))

    @property
    def span(self) -> tuple[int, int]:
        return self.action.begin, self.action.end

    def labelled(self, source: str, tags: tuple[str, ...], created_at: float | None) -> PendingBlock:
        """Return it with these labels. Without `created_at` it was made now."""
        # Rounded to what a datetime can hold, so that filters may name it.
        made = round(time.time(), 6) if created_at is None else created_at
        return dataclasses.replace(self, source=source, tags=tags, created_at=made)

    def store(self, blocks: _core.Blocks) -> int:
        """Wait for the block's bytes, hand them to the memory, and return the block's id. Any thread may call it."""
        assert self.created_at is not None
        return blocks.append(
            stream=self.stream,
            begin=self.action.begin,
            end=self.action.end,
            sink_tokens=self.action.sink_tokens,
            source=self.source,
            created_at=self.created_at,
            tags=self.tags,
            token_ids=self.ids.numpy().astype(np.int32),
            tensors=self.tensors,
            role=self.action.role,
            payload=self.payload(),
        )


Arrived = Callable[[PendingBlock, int], None]  # gets a block that was stored, and its id


class PendingBlocks:
    """Blocks that a thread stores, in order. For the frame's thread alone."""

    def __init__(self, blocks: _core.Blocks) -> None:
        self._blocks = blocks
        self._waiting: deque[tuple[Future[int], PendingBlock]] = deque()
        self._thread: ThreadPoolExecutor | None = None

    def send(self, block: PendingBlock, arrived: Arrived) -> list[BaseException]:
        """Store a block in the thread. Return the errors of earlier blocks that the memory refused."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "everlong blocks")
        failed = self.arrive(arrived, _MOST - 1)
        self._waiting.append((self._thread.submit(block.store, self._blocks), block))
        return failed

    def arrive(self, arrived: Arrived, most: int = 0) -> list[BaseException]:
        """Wait until at most so many blocks are on their way. Return the errors of the others.

        `arrived` is called with each block that was stored.
        """
        failed: list[BaseException] = []
        while len(self._waiting) > most:
            stored, block = self._waiting.popleft()
            try:
                arrived(block, stored.result())
            except BaseException as error:
                failed.append(error)
        return failed

    def close(self) -> None:
        """Wait for all blocks, and end the thread."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
