"""The frame's buffers as a transformers `Cache`: preallocated, written in place, never concatenated.

Slots and positions are two things. A slot is a place in the buffers; its frame position is what its key is rotated by.
Zones of one buffer, P = sink_tokens + recalled_tokens:

    ... unused ... | sinks | recalled | rolling ...          sinks and recalled end at slot P, rolling begins there
                   begin              P            end

so that what the model attends to is always one slice [begin, end), whatever was recalled.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from everlong import ops
from everlong.attach import ServedModel


class ResidentLayer(CacheLayerMixin):
    """One layer's window into the buffers of a ResidentCache."""

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
        self.slots = frame_tokens
        self.rolling_slot = sink_tokens + recalled_tokens  # P
        self._sink_tokens = sink_tokens
        self.begin = recalled_tokens
        self.end = recalled_tokens
        # Sinks never turn: one copy of them, as they were first written, serves every recall.
        self._sinks: SlotSnapshot | None = None
        super().__init__(layers=[ResidentLayer(self, layer) for layer in range(served.layers)])

    @property
    def length(self) -> int:
        """Slots that the model attends to."""
        return self.end - self.begin

    @property
    def rolling_slots(self) -> int:
        return max(0, self.end - self.rolling_slot)

    def nbytes(self) -> int:
        """Bytes of all buffers; constant from construction on."""
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

    def archive(self, first_slot: int, tokens: int, *, page_tokens: int, codec: str) -> torch.Tensor:
        """The payload of a block, uint8 [bytes], on the CPU."""
        return ops.archive_kv(
            self.k,
            self.v,
            self.cos,
            self.sin,
            first_slot,
            tokens,
            page_tokens,
            codec,
            self.rope.interleaved,
        )

    def evict(self, tokens: int, delta: int) -> None:
        """Drop rolling's oldest tokens; the rest moves up and turns by `delta` positions."""
        rest = self.rolling_slots - tokens
        ops.shift_kv_(
            self.k,
            self.v,
            self.cos,
            self.sin,
            self.rolling_slot + tokens,
            self.rolling_slot,
            rest,
            delta,
            self.rope.inv_freq,
            self.rope.interleaved,
        )
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
        ops.restore_kv(
            payload,
            placements,
            self.k,
            self.v,
            self.cos,
            self.sin,
            page_tokens,
            codec,
            self.rope.inv_freq,
            self.rope.attention_scaling,
            self.rope.interleaved,
        )

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
