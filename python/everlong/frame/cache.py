"""The frame's buffers as a transformers `Cache`: preallocated, written in place, never concatenated.

Slots and positions are two things. A slot is a place in the buffers; its frame position is what its key is rotated by.
Zones of one buffer, P = sinks + anchor zone + kept zone + recalled zone, when all are full:

    ... unused ... | sinks | tombstones | anchors | kept | recalled | rolling ...      rolling begins at slot P
                   begin                                            P            end

So the model always attends to one slice [begin, end), however full the zones are. These are the buffers of the layers
with full attention. The other layers keep transformers' own cache layers beside them (own_layers.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

import everlong.ops as ops
from everlong.errors import EverlongError
from everlong.frame.anchors import AnchorMasters
from everlong.frame.kept import KeptMasters
from everlong.frame.own_layers import OwnLayers
from everlong.models.attach import ServedModel
from everlong.models.rope import NO_ROPE, RopeTable


class ResidentLayer(CacheLayerMixin):
    """One full-attention layer's view of the buffers of a ResidentCache."""

    is_sliding = False

    def __init__(self, cache: ResidentCache, layer: int) -> None:
        super().__init__()
        # Weak: a closed MemoryModel frees its buffers at once, without waiting for garbage collection.
        self._cache: ResidentCache = weakref.proxy(cache)
        self._k = cache.k[layer]
        self._v = cache.v[layer]
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Do nothing: the buffers exist."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write k, v [1, Hkv, q, D] behind the newest slot. Return all that attention sees [1, Hkv, length + q, D]."""
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
class Layout:
    """What stands where: all that a cache knows beside its buffers."""

    begin: int
    end: int
    recalled: int
    sinks: SlotSnapshot | None
    anchors: AnchorMasters
    anchor_slots: SlotSnapshot
    kept: KeptMasters
    kept_shown: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class _Part:
    """A run of layers that share a table: views of the buffers."""

    k: torch.Tensor  # [layers, Hkv, F, D]
    v: torch.Tensor
    cos: torch.Tensor  # [F, rotary_dim / 2]
    sin: torch.Tensor
    rope: RopeTable


_OF_A_FRAME = "this cache is a memory's frame: model.generate(..., custom_generate=mm.decode) decodes over it; "


class ResidentCache(Cache):
    """KV of the frame, batch 1. `commit` advances the end after a forward; nothing else grows it.

    It tells transformers its length. A call that would change it without the memory's knowledge raises EverlongError,
    which says what to do instead. A forward writes to it inside `forward` alone.
    """

    def __init__(
        self, served: ServedModel, *, frame_tokens: int, sink_tokens: int, front_tokens: int, kept_tokens: int = 0
    ) -> None:
        """front_tokens: P, the slots before rolling; sink_tokens and kept_tokens of them are sinks' and kept ones."""
        shape = (served.layers, served.kv_heads, frame_tokens, served.head_dim)
        self.k = torch.zeros(shape, dtype=served.dtype, device=served.device)  # rotated keys [L, Hkv, F, D]
        self.v = torch.zeros(shape, dtype=served.dtype, device=served.device)
        half = served.rope.rotary_dim // 2
        # The rotation of each slot's key, exactly as it was applied. Archiving undoes it.
        self.cos = torch.ones(frame_tokens, half, dtype=torch.float32, device=served.device)
        self.sin = torch.zeros(frame_tokens, half, dtype=torch.float32, device=served.device)
        self.rope = served.rope
        self._rotated = served.rotated
        self.own = OwnLayers(served.own_layers(), served.sliding)
        self.slots = frame_tokens
        self.rolling_slot = front_tokens
        self.begin = front_tokens - sink_tokens
        self.end = self.begin
        self.recalled = 0  # slots before rolling
        self._in_forward = False
        self.anchors = AnchorMasters.empty(served.layers, served.kv_heads, served.head_dim, served.device)
        # Sinks never turn. One copy of them, as first written, serves whenever the front is laid anew. The anchor
        # zone's slots have one until they move.
        self._sinks: SlotSnapshot | None = None
        self._anchor_slots = self.snapshot(0, 0)
        # The kept zone's slots are written from their masters whenever the front is laid.
        masters = (served.layers, served.kv_heads, kept_tokens, served.head_dim)
        self.kept = KeptMasters(masters, served.rope.rotary_dim, served.dtype, served.device)
        self.kept_shown: tuple[int, ...] = ()  # tokens of the stream, in order of time
        self._kept_position = 0  # of the first of them, as the model counts
        resident = {index: ResidentLayer(self, layer) for layer, index in enumerate(served.archived)}
        by_index = {**self.own.layers, **resident}
        super().__init__(layers=[by_index[index] for index in sorted(by_index)])

    @contextlib.contextmanager
    def forward(self) -> Iterator[None]:
        """Context manager: within it the model's forward may write behind the newest slot."""
        self._in_forward = True
        try:
            yield
        finally:
            self._in_forward = False

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self._require_forward(key_states)
        written: tuple[torch.Tensor, torch.Tensor] = super().update(
            key_states, value_states, layer_idx, *args, **kwargs
        )
        return written

    def update_conv_state(self, conv_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        self._require_forward(conv_states)
        written: torch.Tensor = super().update_conv_state(conv_states, *args, **kwargs)
        return written

    def update_recurrent_state(self, recurrent_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        self._require_forward(recurrent_states)
        written: torch.Tensor = super().update_recurrent_state(recurrent_states, *args, **kwargs)
        return written

    def _require_forward(self, states: torch.Tensor) -> None:
        if states.shape[0] != 1:
            raise ValueError(f"a batch of {states.shape[0]}: a frame is one stream; one MemoryModel for each works")
        if not self._in_forward:
            raise EverlongError(_OF_A_FRAME + "mm.frame.forward computes ids or soft tokens behind it")

    def get_seq_length(self, layer_idx: int | None = None) -> int:
        """Return the slots that the next token attends to; for a layer with own state, the tokens that it has seen."""
        return self.length if layer_idx is None else int(super().get_seq_length(layer_idx))

    def crop(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise EverlongError(
            _OF_A_FRAME + "`with mm.frame.branch():` undoes what was added inside, as remember=False does"
        )

    def reset(self) -> NoReturn:
        raise EverlongError(_OF_A_FRAME + "for an empty one make another MemoryModel")

    def reorder_cache(self, beam_idx: torch.Tensor) -> NoReturn:
        raise EverlongError(_OF_A_FRAME + "it is one stream: no beams")

    def batch_repeat_interleave(self, repeats: int) -> NoReturn:
        raise EverlongError(_OF_A_FRAME + "it is one stream: no batch")

    def batch_select_indices(self, indices: torch.Tensor) -> NoReturn:
        raise EverlongError(_OF_A_FRAME + "it is one stream: no batch")

    @property
    def length(self) -> int:
        """Slots that the model attends to."""
        return self.end - self.begin

    @property
    def rolling_slots(self) -> int:
        return max(0, self.end - self.rolling_slot)

    @property
    def tombstone_slots(self) -> slice:
        """The tombstones' slots, oldest first."""
        first = self.rolling_slot - self.recalled - len(self.kept_shown) - len(self.anchors)
        return slice(first, first + self.anchors.tombstone_k.shape[2])

    def nbytes(self) -> int:
        """Return the bytes of the buffers, constant from construction on. `frame/budget.py` counts the rest, too."""
        return sum(t.numel() * t.element_size() for t in (self.k, self.v, self.cos, self.sin))

    def commit(self, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """Note that a forward wrote cos.shape[0] tokens, with this rotation: cos, sin [tokens, rotary_dim / 2]."""
        last = self.end + cos.shape[0]
        self.cos[self.end : last] = cos
        self.sin[self.end : last] = sin
        self.end = last

    def slot_of(self, stream_token: int, rolling_begin: int) -> int:
        """Return the slot of a resident token of the stream: a sink, or one in rolling."""
        if stream_token >= rolling_begin:
            return self.rolling_slot + stream_token - rolling_begin
        return self.begin + stream_token

    def archive(
        self,
        first_slot: int,
        tokens: int,
        out: torch.Tensor,
        refused: torch.Tensor | None = None,
        *,
        page_tokens: int,
        codec: str,
    ) -> None:
        """Write the payload of a block to `out`, uint8 [bytes] on the cache's device.

        `refused` is for `require_archived` to read later. With it, where one table serves all layers, nothing waits for
        the device.
        """
        parts = self._parts()
        if refused is not None and len(parts) > 1:
            refused.fill_(0xFF)  # nothing: each part says itself what it refuses
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
                refused=refused if len(parts) == 1 else None,
            )
            for part in parts
        ]
        if len(parts) > 1:
            torch.cat(self._page_by_page(payloads, tokens, page_tokens, codec), out=out)

    def require_archived(self, refused: torch.Tensor, first_slot: int, *, page_tokens: int, codec: str) -> None:
        """Raise for what `archive` refused. `refused` is a copy on the host."""
        ops.require_archived(refused, self.k.shape, first_slot, page_tokens, codec)

    def evict(self, tokens: int, delta: int) -> None:
        """Drop rolling's oldest tokens. The rest moves up and turns by `delta` positions."""
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
        """Make room for `tokens` recalled ones behind all that stays. Return the first recalled slot."""
        self.recalled = tokens
        return self.lay_front()

    def unrotated(self, first_slot: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return k, v fp32 [L, Hkv, tokens, D] of consecutive slots, without their rotation."""
        last = first_slot + tokens
        keys, values = [], []
        for part in self._parts():
            k, v = (x[:, :, first_slot:last].float() for x in (part.k, part.v))
            if part.rope.rotary_dim > 0:
                cos, sin = (_both_of_a_pair(x[first_slot:last], part.rope) for x in (part.cos, part.sin))
                k, v = ops.derotate_kv(k, v, cos, sin, part.rope.interleaved)
            keys.append(k)
            values.append(v)
        return torch.cat(keys), torch.cat(values)

    def set_anchors(self, anchors: AnchorMasters, positions: Sequence[int]) -> None:
        """Put these into the anchor zone, each rotated to its position as the model counts, once the front is laid."""
        where = torch.tensor(positions, dtype=torch.int64, device="cpu")
        masters = (anchors.k, anchors.v)
        keys, values = [], []
        before = 0
        for part in self._parts():
            k, v = (x[before : before + part.k.shape[0]] for x in masters)
            if part.rope.rotary_dim > 0 and len(positions) > 0:
                rope = part.rope
                k, v = ops.rerotate_kv(k, v, where, rope.inv_freq, rope.attention_scaling, rope.interleaved)
            keys.append(k.to(self.k.dtype))
            values.append(v.to(self.v.dtype))
            before += part.k.shape[0]
        angles = where.double()[:, None] * self.rope.inv_freq[None, :]
        phase = ((x * self.rope.attention_scaling).float().to(self.cos.device) for x in (angles.cos(), angles.sin()))
        self.anchors = anchors
        self._anchor_slots = SlotSnapshot(0, torch.cat(keys), torch.cat(values), *phase)

    def keep(self, slots: Mapping[int, int], held: Sequence[int]) -> list[int]:
        """Hold these tokens of the stream in the kept zone. Take new ones from their slots, and return them."""
        new = self.kept.hold(held)
        if not new:
            return new
        slots_of_new = torch.tensor([slots[token] for token in new], dtype=torch.int64, device="cpu")
        rows = self.kept.rows_of(new)
        for part, masters in zip(self._parts(), self._masters(), strict=True):
            ops.gather_kv_(
                part.k,
                part.v,
                part.cos,
                part.sin,
                slots_of_new,
                masters.k,
                masters.v,
                masters.cos,
                masters.sin,
                rows,
                torch.zeros_like(rows),
                part.rope.inv_freq,
                1.0,
                part.rope.interleaved,
            )
        return new

    def show_kept(self, shown: Sequence[int], first_position: int) -> None:
        """Show these held tokens, once the front is laid, from `first_position` on as the model counts."""
        self.kept_shown, self._kept_position = tuple(shown), first_position

    def _lay_kept(self, first_slot: int) -> None:
        count = len(self.kept_shown)
        if count == 0:
            return
        places = torch.arange(count, device="cpu")
        for part, masters in zip(self._parts(), self._masters(), strict=True):
            ops.gather_kv_(
                masters.k,
                masters.v,
                masters.cos,
                masters.sin,
                self.kept.rows_of(self.kept_shown),
                part.k,
                part.v,
                part.cos,
                part.sin,
                places + first_slot,
                places + self._kept_position,
                part.rope.inv_freq,
                part.rope.attention_scaling,
                part.rope.interleaved,
            )

    def lay_front(self) -> int:
        """Lay sinks, anchor zone and kept tokens right before what is recalled. Return the first recalled slot."""
        if self._sinks is None:  # then nothing else stands before rolling yet
            self._sinks = self.snapshot(self.begin, self.rolling_slot - self.begin)
        first_recalled = self.rolling_slot - self.recalled
        first_kept = first_recalled - len(self.kept_shown)
        first_anchor = first_kept - len(self.anchors)
        self.begin = first_anchor - self._sinks.cos.shape[0]
        self.restore(dataclasses.replace(self._sinks, first=self.begin))
        self.restore(dataclasses.replace(self._anchor_slots, first=first_anchor))
        self._lay_kept(first_kept)
        return first_recalled

    def layout(self) -> Layout:
        """Return what stands where, for `put_back`."""
        return Layout(
            self.begin,
            self.end,
            self.recalled,
            self._sinks,
            self.anchors,
            self._anchor_slots,
            self.kept,
            self.kept_shown,
        )

    def put_back(self, layout: Layout) -> None:
        """Put a layout back. The caller puts back what was written to the buffers since."""
        self.begin, self.end, self.recalled = layout.begin, layout.end, layout.recalled
        self._sinks, self.anchors, self._anchor_slots = layout.sinks, layout.anchors, layout.anchor_slots
        self.kept, self.kept_shown = layout.kept, layout.kept_shown

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

    def cool(self, first_slot: int, tokens: int, temperature: float) -> None:
        """Divide the keys of consecutive recalled slots by an attention temperature. These are never archived again."""
        if temperature != 1:
            self.k[:, :, first_slot : first_slot + tokens] /= temperature

    def _parts(self) -> list[_Part]:
        """Return the layers that rotate their keys and those that do not, where there are any."""
        return self._by_table(self.k, self.v, self.cos, self.sin)

    def _masters(self) -> list[_Part]:
        """Return the same of the kept zone's masters."""
        return self._by_table(self.kept.k, self.kept.v, self.kept.cos, self.kept.sin)

    def _by_table(self, k: torch.Tensor, v: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> list[_Part]:
        split = self._rotated
        no_phase = cos[:, :0].contiguous()
        parts = (
            _Part(k[:split], v[:split], cos, sin, self.rope),
            _Part(k[split:], v[split:], no_phase, no_phase, NO_ROPE),
        )
        return [part for part in parts if part.k.shape[0] > 0]

    def _page_by_page(
        self, payloads: list[torch.Tensor], tokens: int, page_tokens: int, codec: str
    ) -> list[torch.Tensor]:
        """Put a block's payload together from its parts': a page holds all layers. Return the pieces in order."""
        lengths = [min(page_tokens, tokens - first) for first in range(0, tokens, page_tokens)]
        pages = []
        for part, payload in zip(self._parts(), payloads, strict=True):
            layers = part.k.shape[0]
            pages.append(payload.split([self._bytes(length, page_tokens, codec, layers) for length in lengths]))
        return [piece for page in zip(*pages, strict=True) for piece in page]

    def _bytes(self, tokens: int, page_tokens: int, codec: str, layers: int) -> int:
        """Return the bytes of `layers` layers of one page."""
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


def _both_of_a_pair(half: torch.Tensor, rope: RopeTable) -> torch.Tensor:
    """Return cos or sin [tokens, rotary_dim] as a model has it, from one number a pair."""
    return half.repeat_interleave(2, dim=-1) if rope.interleaved else torch.cat([half, half], dim=-1)
