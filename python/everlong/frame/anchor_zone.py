"""The anchor zone of a frame of keys and values: what stays of spans that leave."""

from __future__ import annotations

from collections.abc import Sequence

import torch

import everlong._core as _core
from everlong.frame.part import Rows, Span
from everlong.frame.parts import needs_of
from everlong.frame.stream import Stream
from everlong.kv_cache.anchors import AnchorMasters
from everlong.kv_cache.cache import ResidentCache


class AnchorZone:
    """Tombstones and anchors in a cache. The Memory OS decides which tokens they are and where they stand."""

    def __init__(self, stream: Stream, cache: ResidentCache, first_position: int) -> None:
        self._stream, self._cache, self._first_position = stream, cache, first_position

    def keep(self, action: _core.Evict, rolling_begin: int) -> None:
        """Take what the zone holds from now on, before it leaves."""
        cache = self._cache
        anchors = cache.anchors
        for keep in action.keeps:
            k, v = cache.buffers.unrotated(cache.slot_of(keep.begin, rolling_begin), keep.end - keep.begin)
            if not keep.tombstone:
                anchors = anchors.with_anchor(k, v, dropped=keep.dropped)
                continue
            anchors = anchors.with_tombstone(*self._tombstone(keep, k, v))
            if keep.merged >= 0:
                anchors = anchors.with_merged(keep.merged, keep.merged_tokens, keep.next_tokens)
        self.set(anchors, action.anchor_positions)

    def set(self, anchors: AnchorMasters, positions: Sequence[int]) -> None:
        """Hold these at frame positions, once the front is laid."""
        self._cache.set_anchors(anchors, [position + self._first_position for position in positions])

    def _tombstone(self, keep: _core.Keep, k: torch.Tensor, v: torch.Tensor) -> Rows:
        """Return rows whose mean stands for a span of k, v [L, Hkv, n, D]: all, or the one row that a part makes.

        A part makes none of tokens that an earlier process read: their states are not known.
        """
        part = self._stream.parts.tombstone_writer
        if part is not None:
            hidden = self._stream.hidden(keep.begin, keep.end)
            if hidden.keys() >= set(needs_of(part).hidden_layers):
                # The ids of tokens that were archived long ago are not at hand. The part uses places alone here.
                ids = torch.zeros(keep.end - keep.begin, dtype=torch.int64, device="cpu")
                return part.write_evicted(Span(keep.begin, ids, hidden, lambda: (k, v)), (k, v))
        return k, v
