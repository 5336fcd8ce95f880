"""Closed blocks on their way into the memory, and what is stored with each of them."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence

import torch

import everlong._core as _core
from everlong.frame.observers import Observers
from everlong.frame.pending_block import PendingBlock, PendingBlocks
from everlong.frame.stream import Stream
from everlong.frame.zones import Zones

_LOGGER = logging.getLogger("everlong")


def nowhere(begin: int, end: int) -> tuple[str, ...]:
    """Return no tag: the text has no places."""
    return ()


class FrameArchive:
    """Archives a frame's blocks under the names of the text that is read, and tells the observers."""

    def __init__(self, stream: Stream, zones: Zones) -> None:
        self._stream, self._zones = stream, zones
        self.source = ""  # of the next blocks, like the two that follow
        self.tags: tuple[str, ...] = ()
        self.placed: Callable[[int, int], tuple[str, ...]] = nowhere  # tags for a block's span: its places in a text
        self.created_at: float | None = None  # in seconds since 1970; None: now
        self.tagger: Callable[[torch.Tensor], tuple[str, ...]] | None = None  # more tags for a block, by its ids [n]
        self.blocks = 0  # archived by this frame
        self.observers = Observers()
        # Empty but between two chunks of a text.
        self._pending = PendingBlocks(stream.memory.core.blocks)

    def snapshot(self, action: _core.Archive, rolling_begin: int) -> PendingBlock:
        """Take what the frame has of a block."""
        return PendingBlock.snapshot(self._stream, self._zones, action, rolling_begin)

    def store(
        self, block: PendingBlock, chosen: Sequence[int] | None, rolling_begin: int, *, beside: bool
    ) -> Sequence[BaseException]:
        """Store a block, with what parts make of it and what is kept of its `chosen` tokens.

        `beside`: it is stored while what follows goes on. Return the errors of refused earlier blocks then.
        """
        tensors = self._stream.parts.tensors(block.span, block.ids, block.hidden)
        if chosen:
            tensors |= self._zones.chosen_tensors(block.action, chosen, rolling_begin)
        tags = (*self.tags, *self.placed(*block.span), *self._tags_of(block.ids))
        block = dataclasses.replace(block, tensors=tensors).labelled(self.source, tags, self.created_at)
        if beside:
            return self._pending.send(block, self._arrived)
        self._arrived(block, block.store(self._stream.memory.core.blocks))
        return ()

    def _arrived(self, block: PendingBlock, number: int) -> None:
        self.blocks += 1
        self.observers.notify(number, block.span, block.ids, block.hidden)

    def flush(self) -> Sequence[BaseException]:
        """Wait until all blocks on their way are in the memory. Return the errors of those that were refused."""
        refusals = self._pending.arrive(self._arrived)
        for error in refusals:
            _LOGGER.warning("archiving a block failed: %r", error)
        return refusals

    def close(self) -> None:
        """End the threads of blocks and observers."""
        self._pending.close()
        self.observers.close()

    def _tags_of(self, ids: torch.Tensor) -> tuple[str, ...]:
        """Return the tagger's tags. A block that is read again for another model has its tags already."""
        return () if self.tagger is None or self.created_at is not None else self.tagger(ids)
