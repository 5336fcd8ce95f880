"""One forward for tokens of several streams: all weights are read once for all of them.

The tokens stand behind each other in one row, with no padding, and each has its own position. Everything but attention
works token by token. Attention goes stream by stream, over what that stream's cache holds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from transformers.cache_utils import Cache

from everlong.models.custom_attention import CHANGES_SCORES, with_attention
from everlong.models.packing import takes_masks
from everlong.models.releases import cache_argument
from everlong.models.rotations import own_rotations

# What attention of a layer sees of one stream: k, v [1, Hkv, K, D], and its window, where it has one.
Seen = tuple[torch.Tensor, torch.Tensor, int | None]


class StreamCache(Protocol):
    """The cache of one stream."""

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> Seen:
        """Put k, v [1, Hkv, n, D] of a layer of the model behind the newest token. Return what these see."""


@dataclasses.dataclass(frozen=True)
class StreamTokens:
    """Tokens of one stream, on their way behind what its cache holds."""

    cache: StreamCache
    ids: torch.Tensor  # [n] int64, on the CPU
    position: int  # of the first one, as the model counts
    keep_all: bool  # whether logits of all are wanted, and not only of the last
    thread: int  # which thread hears of them: taps of this thread read their states


class BatchedForwardError(RuntimeError):
    """The model does not attend through transformers' interface in every layer, so its streams compute alone."""


def supports_batching(model: Any) -> bool:
    """Return whether the model's attention is transformers' own, and every layer that attends has keys of its own."""
    shared = getattr(model.config.get_text_config(decoder=True), "num_kv_shared_layers", 0)
    return takes_masks(model) and not shared


class Forward:
    """A forward of several streams' tokens, while it is under way."""

    def __init__(self, streams: Sequence[StreamTokens]) -> None:
        self.streams = streams
        ends = [*itertools.accumulate(len(stream.ids) for stream in streams)]
        self.spans = [slice(end - len(stream.ids), end) for stream, end in zip(streams, ends, strict=True)]
        self.of_thread = {stream.thread: span for stream, span in zip(streams, self.spans, strict=True)}
        self.failed: dict[int, Exception] = {}  # by stream: what its cache raised
        self.attended = 0  # layers
        self._masks: dict[tuple[int, int, int | None, int, torch.device], torch.Tensor | None] = {}

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> list[Seen]:
        """Put k, v [1, Hkv, N, D] of a layer of the model into the streams' caches. Return what each stream sees.

        A stream whose cache fails sees its own tokens alone from then on: no other one notices.
        """
        seen: list[Seen] = []
        self._device = k.device  # of the newest layer: a model may lie on several
        for number, (stream, span) in enumerate(zip(self.streams, self.spans, strict=True)):
            own_k, own_v = k[:, :, span], v[:, :, span]
            own: Seen = own_k, own_v, None
            if number not in self.failed:
                try:
                    own = stream.cache.write(layer, own_k, own_v)
                except Exception as error:
                    self.failed[number] = error
            seen.append(own)
        return seen

    def attend(
        self,
        seen: Sequence[Seen],
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        **more: Any,
    ) -> tuple[torch.Tensor, None]:
        """Attend from query [1, Hq, N, D] to what each stream sees in its cache: [1, N, Hq, D]."""
        if any(more.get(name) is not None for name in CHANGES_SCORES):
            raise BatchedForwardError("a layer changes its scores in a way of its own")
        heads, width = query.shape[1], value.shape[-1]
        out = query.new_empty(1, query.shape[2], heads, width)
        for span, (k, v, window) in zip(self.spans, seen, strict=True):
            tokens, copies = span.stop - span.start, heads // k.shape[1]
            # Query heads that read the same keys stand behind each other, so that these are read once.
            shared = query[:, :, span].reshape(1, k.shape[1], copies * tokens, -1)
            mask = self.mask(tokens, k.shape[2], window, copies)
            found = torch.nn.functional.scaled_dot_product_attention(shared, k, v, attn_mask=mask, scale=scaling)
            out[0, span] = found.reshape(heads, tokens, width).transpose(0, 1)
        self.attended += 1
        return out, None

    def mask(self, tokens: int, keys: int, window: int | None, copies: int) -> torch.Tensor | None:
        """Return [copies * tokens, keys] bool: the newest tokens see all before them, in their window. None: they do.

        Every query head that reads the same keys has its own copy.
        """
        within = window is None or keys <= window
        if tokens == 1 and within:
            return None
        device = self._device
        asked = (tokens, keys, window, copies, device)
        if asked not in self._masks:
            at = torch.arange(keys - tokens, keys, device=device)[:, None]
            key = torch.arange(keys, device=device)[None]
            mask = key <= at
            if window is not None:
                mask &= key > at - window
            self._masks[asked] = mask.repeat(copies, 1)
        return self._masks[asked]


_under_way = threading.local()


@contextlib.contextmanager
def observe_as(thread: int) -> Iterator[None]:
    """Context manager: taps of another thread hear this thread's forwards, which are computed for it."""
    _under_way.for_thread = thread
    try:
        yield
    finally:
        _under_way.for_thread = None


@contextlib.contextmanager
def unobserved() -> Iterator[None]:
    """Context manager: no tap hears this thread's forwards."""
    _under_way.unheard = True
    try:
        yield
    finally:
        _under_way.unheard = False


def rows_of_thread(thread: int, states: torch.Tensor, dim: int = 1) -> torch.Tensor | None:
    """Return those of a forward's states that belong to a thread, along the dimension of tokens; None: none does.

    A hook calls it while the forward is under way. A thread's own forward is all its own. A joint forward has tokens
    of several threads.
    """
    if getattr(_under_way, "unheard", False):
        return None
    forward: Forward | None = getattr(_under_way, "forward", None)
    if forward is None:
        own = getattr(_under_way, "for_thread", None) or threading.get_ident()
        return states if own == thread else None
    span = forward.of_thread.get(thread)
    return None if span is None else states.narrow(dim, span.start, span.stop - span.start)


@torch.no_grad()
def compute(model: Any, streams: Sequence[StreamTokens]) -> list[tuple[torch.Tensor, slice] | Exception]:
    """Compute the streams' tokens. Return logits [1, V] of each stream's last token, or [n, V] of all, and its span.

    The span says where its tokens stood in the forward. Every cache has the new keys and values behind its newest
    token, and no cache's end has moved. Of a stream whose cache raised an error, return that instead: the others have
    what they would have without it. Raises JointError where a layer attended in another way; what was written is of no
    use then.
    """
    device = model.device
    forward = Forward(streams)
    wanted = [
        at
        for stream, span in zip(streams, forward.spans, strict=True)
        for at in range(span.start if stream.keep_all else span.stop - 1, span.stop)
    ]
    positions = [torch.arange(one.position, one.position + len(one.ids)) for one in streams]
    cache = _BatchCache(forward)
    with _under_way_as(forward), own_rotations():
        out = model(
            input_ids=torch.cat([one.ids for one in streams])[None].to(device),
            attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device),  # attention goes by the streams
            position_ids=torch.cat(positions)[None].to(device),
            **{cache_argument(model): cache},
            use_cache=True,
            logits_to_keep=torch.tensor(wanted, device=device),
        )
    if forward.attended != cache.written or cache.written == 0:
        raise BatchedForwardError(
            f"{forward.attended} of {cache.written} layers attended through transformers' interface"
        )
    counts = [len(one.ids) if one.keep_all else 1 for one in streams]
    rows = zip(torch.split(out.logits[0], counts), forward.spans, strict=True)
    return [forward.failed.get(number, row) for number, row in enumerate(rows)]


class _BatchCache(Cache):
    """The caches of several streams, for one forward."""

    def __init__(self, forward: Forward) -> None:
        super().__init__(layers=[])
        self._forward = forward
        self.written = 0  # layers

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        seen = self._forward.write(layer_idx, key_states, value_states)
        self.written += 1
        return with_attention(key_states, functools.partial(self._forward.attend, seen)), value_states

    def get_seq_length(self, layer_idx: int | None = None) -> int:
        return 0


@contextlib.contextmanager
def _under_way_as(forward: Forward) -> Iterator[None]:
    _under_way.forward = forward
    try:
        yield
    finally:
        _under_way.forward = None
