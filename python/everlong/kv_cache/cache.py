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
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from everlong.errors import EverlongError
from everlong.kv_cache.anchors import AnchorMasters
from everlong.kv_cache.buffers import Buffers, SlotSnapshot
from everlong.kv_cache.kept import KeptMasters
from everlong.kv_cache.own_layers import OwnLayers
from everlong.kv_cache.page_loading import PageLoad
from everlong.kv_cache.visible_spans import VisibleMask
from everlong.models.attach import AttachedModel
from everlong.models.batched_forward import Seen
from everlong.models.custom_attention import with_attention
from everlong.models.rotations import own_rotations
from everlong.models.slot_attention import attend_to_slots


class ResidentLayer(CacheLayerMixin):
    """One full-attention layer's view of the buffers of a ResidentCache."""

    is_sliding = False

    def __init__(self, cache: ResidentCache, layer: int) -> None:
        super().__init__()
        # Weak: a closed MemoryModel frees its buffers at once, without waiting for garbage collection.
        self._cache: ResidentCache = weakref.proxy(cache)
        self._k = cache.k[layer]
        self._v = cache.v[layer]
        self._layer = layer
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Do nothing: the buffers exist."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write k, v [1, Hkv, q, D] behind the newest slot. Return all that attention sees [1, Hkv, length + q, D].

        Where the forward names a slot, the one token goes there, and all slots [1, Hkv, F, D] are returned.
        """
        cache = self._cache
        if cache.arriving is not None:
            cache.arriving.until(self._layer)
        if cache.slot is not None:
            self._k.index_copy_(1, cache.slot, key_states[0])
            self._v.index_copy_(1, cache.slot, value_states[0])
            return with_attention(self._k[None], attend_to_slots), self._v[None]
        first, last = cache.end, cache.end + key_states.shape[-2]
        self._k[:, first:last] = key_states[0]
        self._v[:, first:last] = value_states[0]
        return cache.attended(self._k, last), cache.attended(self._v, last)

    def get_seq_length(self) -> int:
        return self._cache.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._cache.length + query_length, 0

    def get_max_length(self) -> int:
        return self._cache.slots


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
    kept_visible: tuple[int, ...]
    hidden: VisibleMask | None


_OF_A_FRAME = "this cache is a memory's frame: model.generate(..., custom_generate=mm.decode) decodes over it; "


class ResidentCache(Cache):
    """KV of the frame, batch 1. `commit` advances the end after a forward; nothing else grows it.

    It tells transformers its length. A call that would change it without the memory's knowledge raises EverlongError,
    which says what to do instead. A forward writes to it inside `forward` alone.
    """

    def __init__(
        self,
        served: AttachedModel,
        *,
        frame_tokens: int,
        sink_tokens: int,
        front_tokens: int,
        kept_tokens: int = 0,
        buffers: Buffers | None = None,
    ) -> None:
        """front_tokens: P, the slots before rolling; sink_tokens and kept_tokens of them are sinks' and kept ones.

        buffers: of so many slots; by default empty ones are made.
        """
        self.buffers = Buffers(served, frame_tokens) if buffers is None else buffers
        self.k, self.v = self.buffers.k, self.buffers.v
        self.cos, self.sin = self.buffers.cos, self.buffers.sin
        self.own = OwnLayers(served.own_layers(), served.sliding)
        self.slots = frame_tokens
        self.rolling_slot = front_tokens
        self.begin = front_tokens - sink_tokens
        self.end = self.begin
        self.recalled = 0  # slots before rolling
        self._in_forward = False
        self.arriving: PageLoad | None = None  # what is on its way into slots that forwards attend to
        self.slot: torch.Tensor | None = None  # within a forward that names one: int64 [1]
        self.anchors = AnchorMasters.empty(served.layers, served.kv_heads, served.head_dim, served.device)
        # Sinks never turn. One copy of them, as first written, serves whenever the front is laid anew. The anchor
        # zone's slots have one until they move.
        self._sinks: SlotSnapshot | None = None
        self._anchor_slots = self.buffers.snapshot(0, 0)
        # The kept zone's slots are written from their masters whenever the front is laid.
        masters = (served.layers, served.kv_heads, kept_tokens, served.head_dim)
        self.kept = KeptMasters(masters, served.rope.rotary_dim, served.dtype, served.device)
        self.kept_visible: tuple[int, ...] = ()  # tokens of the stream, in order of time
        self._kept_position = 0  # of the first of them, as the model counts
        self.hidden: VisibleMask | None = (
            None  # bool [slots]: slots that the model does not attend to; None: to all it does
        )
        self._attended = torch.zeros(0, dtype=torch.int64, device=served.device)
        resident = {index: ResidentLayer(self, layer) for layer, index in enumerate(served.archived)}
        by_index = {**self.own.layers, **resident}
        super().__init__(layers=[by_index[index] for index in sorted(by_index)])

    @contextlib.contextmanager
    def forward(self, slot: torch.Tensor | None = None) -> Iterator[None]:
        """Context manager: within it the model's forward may write behind the newest slot, or one token to `slot` [1].

        A forward that names its slot attends to all slots of the buffers. Its mask must hide those that are not in use.
        """
        self._in_forward, self.slot = True, slot
        try:
            with own_rotations():
                yield
        finally:
            self._in_forward, self.slot = False, None

    @contextlib.contextmanager
    def awaiting(self, arriving: PageLoad) -> Iterator[None]:
        """Context manager: within it each layer of a forward waits for what is on its way into the layer's slots."""
        self.arriving = arriving
        try:
            yield
        finally:
            self.arriving = None

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

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> Seen:
        """Put k, v [1, Hkv, n, D] of a layer of the model behind the newest token, in a forward of several frames.

        Return what these tokens see.
        """
        own: Any = self.layers[layer]
        keys, values = own.update(k, v)
        return keys, values, own.sliding_window if own.is_sliding else None

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
        """How many slots the model attends to."""
        hidden = 0 if self.hidden is None else int(self.hidden[self.begin : self.end].sum())
        return self.end - self.begin - hidden

    def hide(self, hidden: VisibleMask | None) -> None:
        """Hide these slots from the next forward, which writes behind them."""
        self.hidden = hidden
        if hidden is not None:
            visible = torch.from_numpy((~hidden[self.begin : self.end]).nonzero()[0] + self.begin)
            self._attended = visible.to(self._attended.device)

    def attended(self, x: torch.Tensor, last: int) -> torch.Tensor:
        """Return what attention sees of x [Hkv, F, D], up to slot `last`, while a forward writes: [1, Hkv, n, D]."""
        if self.hidden is None:
            return x[None, :, self.begin : last]
        return torch.cat([x[:, self._attended], x[:, self.end : last]], dim=1)[None]

    @property
    def rolling_slots(self) -> int:
        return max(0, self.end - self.rolling_slot)

    @property
    def tombstone_slots(self) -> slice:
        """The tombstones' slots, oldest first."""
        first = self.rolling_slot - self.recalled - len(self.kept_visible) - len(self.anchors)
        return slice(first, first + self.anchors.tombstone_k.shape[2])

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

    def evict(self, tokens: int, delta: int) -> None:
        """Drop rolling's oldest tokens. The rest moves up and turns by `delta` positions."""
        rest = self.rolling_slots - tokens
        self.buffers.shift(self.rolling_slot + tokens, self.rolling_slot, rest, delta)
        self.own.turn(delta)
        self.end = self.rolling_slot + rest

    def open_recalled(self, tokens: int) -> int:
        """Make room for `tokens` recalled ones behind all that stays. Return the first recalled slot."""
        self.recalled = tokens
        return self.lay_front()

    def begin_anew(self) -> None:
        """Hold nothing, as a new one."""
        self.begin = self.end = self.rolling_slot
        self.recalled, self.hidden, self._sinks = 0, None, None
        anchors = self.anchors
        self.anchors = AnchorMasters.empty(anchors.k.shape[0], anchors.k.shape[1], anchors.k.shape[3], anchors.k.device)
        self._anchor_slots = self.buffers.snapshot(0, 0)
        self.kept.empty()
        self.kept_visible, self._kept_position = (), 0
        self.own.empty()
        self.buffers.empty(0, self.slots)

    def set_anchors(self, anchors: AnchorMasters, positions: Sequence[int]) -> None:
        """Put these into the anchor zone, each rotated to its position as the model counts, once the front is laid."""
        self.anchors = anchors
        self._anchor_slots = self.buffers.rotated(anchors.k, anchors.v, positions)

    def set_kept_visible(self, visible: Sequence[int], first_position: int) -> None:
        """Show these held tokens, once the front is laid, from `first_position` on as the model counts."""
        self.kept_visible, self._kept_position = tuple(visible), first_position

    def lay_front(self) -> int:
        """Lay sinks, anchor zone and kept tokens right before what is recalled. Return the first recalled slot."""
        if self._sinks is None:  # then nothing else stands before rolling yet
            self._sinks = self.buffers.snapshot(self.begin, self.rolling_slot - self.begin)
        first_recalled = self.rolling_slot - self.recalled
        first_kept = first_recalled - len(self.kept_visible)
        first_anchor = first_kept - len(self.anchors)
        self.begin = first_anchor - self._sinks.cos.shape[0]
        self.buffers.restore(dataclasses.replace(self._sinks, first=self.begin))
        self.buffers.restore(dataclasses.replace(self._anchor_slots, first=first_anchor))
        self.buffers.lay(self.kept, self.kept_visible, first_kept, self._kept_position)
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
            self.kept_visible,
            self.hidden,
        )

    def put_back(self, layout: Layout) -> None:
        """Put a layout back. The caller puts back what was written to the buffers since."""
        self.begin, self.end, self.recalled = layout.begin, layout.end, layout.recalled
        self._sinks, self.anchors, self._anchor_slots = layout.sinks, layout.anchors, layout.anchor_slots
        self.kept, self.kept_visible, self.hidden = layout.kept, layout.kept_visible, layout.hidden

    def take_over(self, other: ResidentCache) -> None:
        """Hold what another cache holds. The buffers are a copy of its own."""
        self.own.restore(other.own.snapshot())
        self.put_back(other.layout())
        self.kept, self._kept_position = other.kept.copy(), other._kept_position

    def exchange_sinks(self, tokens: int) -> None:
        """Note that the sinks' slots, so many, were written anew."""
        if self._sinks is not None:
            self._sinks = self.buffers.snapshot(self.begin, tokens)
