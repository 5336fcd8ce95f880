"""The frame's buffers as a transformers `Cache`: preallocated, written in place, never concatenated.

Slots and positions are two things. A slot is a place in the buffers; its frame position is what its key is rotated by.
Zones of one buffer, P = sink_tokens + recalled_tokens:

    ... unused ... | sinks | recalled | rolling ...          sinks and recalled end at slot P, rolling begins there
                   begin              P            end

so that what the model attends to is always one slice [begin, end), whatever was recalled. These are the buffers of the
layers with full attention. The others keep transformers' own cache layers beside them (own_layers.py).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from everlong import ops
from everlong.attach import ServedModel
from everlong.own_layers import OwnLayers
from everlong.rope import NO_ROPE, RopeTable


class ResidentLayer(CacheLayerMixin):
    """One full-attention layer's window into the buffers of a ResidentCache."""

    is_sliding = False

    def __init__(self, cache: ResidentCache, layer: int) -> None:
        super().__init__()
        self._cache = cache
        self._k = cache.k[layer]
        self._v = cache.v[layer]
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: the buffers exist."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write k, v [1, Hkv, q, D] behind the newest slot; return all that attention sees [1, Hkv, length + q, D]."""
        cache = self._cache
        first, last = cache.end, cache.end + key_states.shape[-2]
        self._k[:, first:last] = key_states[0]
        self._v[:, first:last] = value_states[0]
        return self._k[None, :, cache.begin : last], self._v[None, :, cache.begin : last]

    def get_seq_length(self) -> int:
        return self._cache.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._cache.length + query_length, 0

    def get_max_length(self) -> int:
        return self._cache.slots


@dataclasses.dataclass(frozen=True)
class SlotSnapshot:
    """A copy of slots [first, first + count), to be put back."""

    first: int
    k: torch.Tensor  # [L, Hkv, count, D]
    v: torch.Tensor
    cos: torch.Tensor  # [count, rotary_dim / 2]
    sin: torch.Tensor


@dataclasses.dataclass(frozen=True)
class _Part:
    """A run of layers that share a table: views of the buffers."""

    k: torch.Tensor  # [layers, Hkv, F, D]
    v: torch.Tensor
    cos: torch.Tensor  # [F, rotary_dim / 2]
    sin: torch.Tensor
    rope: RopeTable


class ResidentCache(Cache):
    """KV of the frame, batch 1. `commit` advances the end after a forward; nothing else grows it."""

    def __init__(self, served: ServedModel, *, frame_tokens: int, sink_tokens: int, recalled_tokens: int) -> None:
        shape = (served.layers, served.kv_heads, frame_tokens, served.head_dim)
        self.k = torch.zeros(shape, dtype=served.dtype, device=served.device)  # rotated keys [L, Hkv, F, D]
        self.v = torch.zeros(shape, dtype=served.dtype, device=served.device)
        half = served.rope.rotary_dim // 2
        # The rotation that each slot's key carries, exactly as it was applied: what un-rotates it at archive.
        self.cos = torch.ones(frame_tokens, half, dtype=torch.float32, device=served.device)
        self.sin = torch.zeros(frame_tokens, half, dtype=torch.float32, device=served.device)
        self.rope = served.rope
        self._rotated = served.rotated
        self.own = OwnLayers(served.own_layers(), served.sliding)
        self.slots = frame_tokens
        self.rolling_slot = sink_tokens + recalled_tokens  # P
        self._sink_tokens = sink_tokens
        self.begin = recalled_tokens
        self.end = recalled_tokens
        # Sinks never turn: one copy of them, as they were first written, serves every recall.
        self._sinks: SlotSnapshot | None = None
        resident = {index: ResidentLayer(self, layer) for layer, index in enumerate(served.archived)}
        by_index = {**self.own.layers, **resident}
        super().__init__(layers=[by_index[index] for index in sorted(by_index)])

    @property
    def length(self) -> int:
        """Slots that the model attends to."""
        return self.end - self.begin

    @property
    def rolling_slots(self) -> int:
        return max(0, self.end - self.rolling_slot)

    def nbytes(self) -> int:
        """Bytes of all buffers; constant from construction on. Layers with a state of their own are not counted."""
        return sum(t.numel() * t.element_size() for t in (self.k, self.v, self.cos, self.sin))

    def commit(self, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """A forward wrote cos.shape[0] tokens: remember the rotation it used, cos, sin [tokens, rotary_dim / 2]."""
        last = self.end + cos.shape[0]
        self.cos[self.end : last] = cos
        self.sin[self.end : last] = sin
        self.end = last

    def slot_of(self, stream_token: int, rolling_begin: int) -> int:
        """The slot of a resident token of the stream: a sink, or in rolling."""
        if stream_token >= rolling_begin:
            return self.rolling_slot + stream_token - rolling_begin
        return self.begin + stream_token

    def archive(self, first_slot: int, tokens: int, out: torch.Tensor, *, page_tokens: int, codec: str) -> None:
        """Write the payload of a block to `out`, uint8 [bytes] on the cache's device."""
        parts = self._parts()
        payloads = [
            ops.archive_kv(
                part.k,
                part.v,
                part.cos,
                part.sin,
                first_slot,
                tokens,
                page_tokens,
                codec,
                part.rope.interleaved,
                out=out if len(parts) == 1 else None,
            )
            for part in parts
        ]
        if len(parts) > 1:
            torch.cat(self._page_by_page(payloads, tokens, page_tokens, codec), out=out)

    def evict(self, tokens: int, delta: int) -> None:
        """Drop rolling's oldest tokens; the rest moves up and turns by `delta` positions."""
        rest = self.rolling_slots - tokens
        for part in self._parts():
            ops.shift_kv_(
                part.k,
                part.v,
                part.cos,
                part.sin,
                self.rolling_slot + tokens,
                self.rolling_slot,
                rest,
                delta,
                part.rope.inv_freq,
                part.rope.interleaved,
            )
        self.own.turn(delta)
        self.end = self.rolling_slot + rest

    def open_recalled(self, tokens: int) -> int:
        """Make room for `tokens` recalled ones, the sinks before them; return the first recalled slot."""
        if self._sinks is None:
            self._sinks = self.snapshot(self.begin, self._sink_tokens)
        first = self.rolling_slot - tokens
        self.begin = first - self._sink_tokens
        self.restore(dataclasses.replace(self._sinks, first=self.begin))
        return first

    def write_pages(self, payload: torch.Tensor, placements: torch.Tensor, *, page_tokens: int, codec: str) -> None:
        """Decode and rotate pages into their slots; placements [N, 6] as `ops.restore_kv` reads them."""
        layers_before = 0
        for part in self._parts():
            if layers_before > 0:  # within each page, this part begins behind the layers before it
                placements = placements.clone()
                for row in placements:
                    row[0] += self._bytes(int(row[1]), page_tokens, codec, layers_before)
            ops.restore_kv(
                payload,
                placements,
                part.k,
                part.v,
                part.cos,
                part.sin,
                page_tokens,
                codec,
                part.rope.inv_freq,
                part.rope.attention_scaling,
                part.rope.interleaved,
            )
            layers_before += part.k.shape[0]

    def _parts(self) -> list[_Part]:
        """The layers that rotate their keys and those that do not, where there are any."""
        split = self._rotated
        no_phase = self.cos[:, :0].contiguous()
        parts = (
            _Part(self.k[:split], self.v[:split], self.cos, self.sin, self.rope),
            _Part(self.k[split:], self.v[split:], no_phase, no_phase, NO_ROPE),
        )
        return [part for part in parts if part.k.shape[0] > 0]

    def _page_by_page(
        self, payloads: list[torch.Tensor], tokens: int, page_tokens: int, codec: str
    ) -> list[torch.Tensor]:
        """The pieces of a block's payload out of those of its parts, in order: a page holds all layers."""
        lengths = [min(page_tokens, tokens - first) for first in range(0, tokens, page_tokens)]
        pages = []
        for part, payload in zip(self._parts(), payloads, strict=True):
            layers = part.k.shape[0]
            pages.append(payload.split([self._bytes(length, page_tokens, codec, layers) for length in lengths]))
        return [piece for page in zip(*pages, strict=True) for piece in page]

    def _bytes(self, tokens: int, page_tokens: int, codec: str, layers: int) -> int:
        """Bytes of `layers` layers of one page."""
        _, kv_heads, _, head_dim = self.k.shape
        return ops.payload_bytes(tokens, page_tokens, layers, kv_heads, head_dim, codec)

    def snapshot(self, first: int, count: int) -> SlotSnapshot:
        last = first + count
        return SlotSnapshot(
            first,
            self.k[:, :, first:last].clone(),
            self.v[:, :, first:last].clone(),
            self.cos[first:last].clone(),
            self.sin[first:last].clone(),
        )

    def restore(self, saved: SlotSnapshot) -> None:
        last = saved.first + saved.cos.shape[0]
        self.k[:, :, saved.first : last] = saved.k
        self.v[:, :, saved.first : last] = saved.v
        self.cos[saved.first : last] = saved.cos
        self.sin[saved.first : last] = saved.sin
