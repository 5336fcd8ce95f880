"""Closed blocks on their way into the memory, and what is stored with each of them."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

import everlong._core as _core
from everlong.frame.observers import Observers
from everlong.frame.stream import Stream
from everlong.frame.writing import BlocksOnTheirWay
from everlong.frame.zones import Zones

_LOGGER = logging.getLogger("everlong")


def nowhere(begin: int, end: int) -> tuple[str, ...]:
    """Return no tag: the text has no places."""
    return ()


class FrameArchive:
    """Archives a frame's blocks, and tells the observers."""

    def __init__(self, stream: Stream, zones: Zones) -> None:
        self._stream, self._zones = stream, zones
        self.source = ""  # of the next blocks, like the two that follow
        self.tags: tuple[str, ...] = ()
        self.placed: Callable[[int, int], tuple[str, ...]] = nowhere  # tags for a block's span: its places in a text
        self.created_at: float | None = None  # in seconds since 1970; None: now
        self.tagger: Callable[[torch.Tensor], tuple[str, ...]] | None = None  # more tags for a block, by its ids [n]
        self.blocks = 0  # archived by this frame
        self.observers = Observers()
        self._on_their_way = BlocksOnTheirWay()  # empty but between two chunks of a text

    def archive(
        self,
        action: _core.Archive,
        rolling_begin: int,
        trim: _core.Trim | None,
        choose: Callable[[_core.Trim], list[int]],
        refusals: list[BaseException] | None,
    ) -> list[int] | None:
        """Take the snapshot for the archive, then choose what is kept of the block, which is stored with it.

        With `refusals` it is stored while what follows goes on. Errors of refused earlier blocks are added there.
        """
        stream, core = self._stream, self._stream.memory.core
        told = stream.ids(action.begin, action.end)
        ids = told.numpy().astype(np.int32)
        hidden = stream.hidden(action.begin, action.end)
        payload = self._zones.payload(action, rolling_begin)
        chosen = None if trim is None else choose(trim)
        tensors = stream.parts.tensors((action.begin, action.end), told, hidden)
        if chosen:
            tensors |= self._zones.chosen_tensors(action, chosen, rolling_begin)
        append = functools.partial(
            core.blocks.append,
            stream=stream.os.stream,
            begin=action.begin,
            end=action.end,
            sink_tokens=action.sink_tokens,
            source=self.source,
            # Rounded to what a datetime can hold, so that filters may name it.
            created_at=round(time.time(), 6) if self.created_at is None else self.created_at,
            tags=(*self.tags, *self.placed(action.begin, action.end), *self._told_tags(told)),
            token_ids=ids,
            tensors=tensors,
            role=action.role,
        )

        def arrived(block: int) -> None:
            self.blocks += 1
            self.observers.tell(block, (action.begin, action.end), told, hidden)

        def store() -> int:
            return append(payload=payload())

        if refusals is None:
            arrived(store())
        else:
            refusals.extend(self._on_their_way.send(store, arrived))
        return chosen

    def let_arrive(self) -> Sequence[BaseException]:
        """Wait until all blocks on their way are in the memory. Return the errors of those that were refused."""
        refusals = self._on_their_way.arrive()
        for error in refusals:
            _LOGGER.warning("archiving a block failed: %r", error)
        return refusals

    def close(self) -> None:
        """End the threads of blocks and observers."""
        self._on_their_way.close()
        self.observers.close()

    def _told_tags(self, ids: torch.Tensor) -> tuple[str, ...]:
        """Return the tagger's tags. A block that is read again for another model has its tags already."""
        return () if self.tagger is None or self.created_at is not None else self.tagger(ids)
