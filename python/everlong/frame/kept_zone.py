"""The kept zone of a frame of keys and values: the best tokens of closed blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt
import torch

import everlong._core as _core
from everlong.errors import MemoryNotFoundError
from everlong.frame.checkpoint import Checkpoint
from everlong.frame.kept_tokens import (
    KeptPayload,
    best_tokens,
    kept_bytes,
    kept_payload,
    kept_rows,
    tensors_of,
    token_scores,
)
from everlong.frame.pages import ArchivedPages
from everlong.frame.part import Rows, Span
from everlong.frame.parts import needs_of
from everlong.frame.stream import Stream
from everlong.kv_cache.cache import ResidentCache
from everlong.kv_cache.kept import KeptRows


class KeptZone:
    """Kept tokens in a cache. The Memory OS decides how many they are and where they stand."""

    def __init__(self, stream: Stream, cache: ResidentCache, pages: ArchivedPages, first_position: int) -> None:
        self._stream, self._cache, self._pages, self._first_position = stream, cache, pages, first_position

    def chosen(self, action: _core.Trim, rolling_begin: int) -> list[int]:
        """Return the best of a closed block's tokens, the best first."""
        # The first block begins with sinks, which are not in rolling's slots.
        in_rolling = max(action.begin, rolling_begin)
        block = Span(
            begin=action.begin,
            ids=self._stream.ids(action.begin, action.end),
            hidden=self._stream.hidden(action.begin, action.end),
            kv=lambda: self._rows_of_block(action.begin, in_rolling, action.end, rolling_begin),
        )
        scores = token_scores(self._stream.parts.token_scorer, block)
        return best_tokens(scores, action.begin, action.runs, action.tokens)

    def tensors(
        self, action: _core.Archive, chosen: Sequence[int], rolling_begin: int
    ) -> Mapping[str, npt.NDArray[Any]]:
        """Return what is stored with a block of the tokens that were chosen in it."""
        stream, part, archive = self._stream, self._stream.parts.kept_writer, self._stream.config.archive
        if stream.config.answer.recall_mode != "kept" and part is None:
            return tensors_of(action.begin, chosen)
        first = max(action.begin, rolling_begin)  # before it are sinks, which are never chosen
        hidden = stream.hidden(first, action.end)
        if part is not None and not hidden.keys() >= set(needs_of(part).hidden_layers):
            return tensors_of(action.begin, chosen)  # the payload is made in the background
        places = torch.tensor(sorted(chosen), dtype=torch.int64, device="cpu") - first
        rows = self._cache.buffers.unrotated(self._cache.slot_of(first, rolling_begin), action.end - first)
        span = Span(first, stream.ids(first, action.end), hidden, lambda: rows, places)
        payload = kept_bytes(kept_rows(part, span), page_tokens=archive.page_tokens, codec=archive.codec)
        return tensors_of(action.begin, chosen, payload, None if part is None else part.id)

    @property
    def changes(self) -> bool:
        """Whether the Memory OS holds other tokens than the cache does."""
        return self._cache.kept.tokens != set(self._stream.os.kept_held)

    def keep(self, rolling_begin: int) -> None:
        """Take what the zone holds from now on, before it leaves."""
        cache, held = self._cache, self._stream.os.kept_held
        slots = {token: cache.slot_of(token, rolling_begin) for token in held if token >= rolling_begin}
        new = cache.kept.hold(held)
        if new:
            cache.buffers.take(cache.kept, new, [slots[token] for token in new])
        self._take_written(new)
        self.show()

    def show(self) -> None:
        """Show what the Memory OS shows, once the front is laid."""
        os = self._stream.os
        self._cache.set_kept_visible(os.kept_shown, os.kept_position + self._first_position)

    def come_back(self, rows: KeptRows | None, last: Checkpoint) -> None:
        """Hold what a checkpoint held."""
        held = self._stream.os.kept_held
        if held and rows is not None and last.kept is not None:
            self._cache.kept.hold(held)
            self._cache.kept.write(last.kept.held, rows)
            self.show()

    def payloads(self, pages: Sequence[_core.PageRef]) -> Mapping[int, KeptPayload]:
        """Return payloads by block, for the blocks of these pages that come back as their chosen tokens alone."""
        stream = self._stream
        if stream.config.answer.recall_mode != "kept" or not stream.os.evicted:
            return {}
        found = {block: self._payload(block) for block in {page.block for page in pages}}
        return {block: payload for block, payload in found.items() if payload is not None}

    def _payload(self, block: int) -> KeptPayload | None:
        part = self._stream.parts.kept_writer
        writer = None if part is None else part.id
        return kept_payload(self._stream.memory.core, block, writer, self._pages.block_bytes)

    def _rows_of_block(self, begin: int, in_rolling: int, end: int, rolling_begin: int) -> Rows:
        """Return k, v [L, Hkv, end - begin, D] fp32, un-rotated."""
        cache = self._cache
        runs = [(begin, in_rolling), (in_rolling, end)]
        rows = [
            cache.buffers.unrotated(cache.slot_of(first, rolling_begin), last - first)
            for first, last in runs
            if last > first
        ]
        return torch.cat([k for k, _ in rows], dim=2), torch.cat([v for _, v in rows], dim=2)

    def _take_written(self, new: Sequence[int]) -> None:
        """Use what the writer stored for tokens that were just taken. Tokens without it stay as they were read."""
        core = self._stream.memory.core
        while self._stream.parts.kept_writer is not None and new:
            try:
                (page,) = core.blocks.pages_of(self._stream.os.stream, new[0], new[0] + 1)
                block = core.blocks.info(page.block)
            except (MemoryNotFoundError, ValueError):
                new = new[1:]
                continue
            new = [token for token in new if not block.begin <= token < block.end]
            written = self._payload(block.id)
            if written is not None:
                self._cache.kept.write(written.tokens, self._pages.plain_rows(written))
