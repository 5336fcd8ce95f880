"""The model's forward over a frame's slots, alone or together with other frames'."""

from __future__ import annotations

import dataclasses
import functools
import threading
import weakref
from collections.abc import Callable, Generator, Hashable, Sequence
from typing import Any

import torch

from everlong.kv_cache.batching import Computed, PendingForward, current_job
from everlong.kv_cache.block_step import MOST_TOKENS, BlockStep, StepTokens
from everlong.kv_cache.cache import ResidentCache
from everlong.kv_cache.cuda_graph import GraphStep
from everlong.kv_cache.phase import PhaseTap
from everlong.kv_cache.visible_spans import VisibleMask
from everlong.models.attach import AttachedModel
from everlong.models.batched_forward import StreamTokens, observe_as, supports_batching
from everlong.models.low_rank import adapted
from everlong.models.packing import open_mask, packs
from everlong.models.releases import cache_argument
from everlong.models.tokens import Tokens


class FrameForward:
    """Computes tokens behind a cache's newest slot. `close` takes its hook off the model."""

    def __init__(self, served: AttachedModel, cache: ResidentCache, hidden: Callable[[], VisibleMask | None]) -> None:
        """hidden: says before each forward which slots it does not attend to."""
        self._served, self._cache, self._hidden = served, cache, hidden
        self._cache_argument = cache_argument(served.model)
        self.phase = PhaseTap(served)
        self.newest: Any = ()  # the rotation of what was computed last: cos, sin [n, rotary_dim / 2]
        self.step = GraphStep(served, cache, self.phase)
        self.blocks = BlockStep(served, cache, self.phase)
        tables = (served.rope, *served.sliding.values())
        self.positions = (served.first_position, *(table.fingerprint() for table in tables))
        weakref.finalize(self, self.phase.close)  # for a frame that nobody closed

    def close(self) -> None:
        self.phase.close()

    @property
    def joins(self) -> bool:
        """Whether tokens may be computed together with other frames'.

        A layer that runs through the tokens in order, as linear attention does, would mix them.
        """
        return self._cache.own.windows_alone and supports_batching(self._served.model)

    def forward_at(self, position: int, chunk: Tokens, *, keep_all: bool) -> torch.Tensor:
        """Put chunk [n] behind the newest slot, at frame positions position, position + 1 ... Return its logits."""
        served, cache = self._served, self._cache
        cache.hide(self._hidden())
        first = position + served.first_position
        work = current_job()
        if work is not None and chunk.embeds is None and self.joins and not adapted():
            logits, *self.newest = work.compute(_PendingForward(self, chunk, first, keep_all, threading.get_ident()))
            cache.commit(*self.newest)
            return logits
        played = self.step.token(chunk, first)
        if played is not None:
            return played
        logits, *self.newest = self.alone(chunk, first, keep_all=keep_all)
        cache.commit(*self.newest)
        return logits

    def alone(self, chunk: Tokens, first: int, *, keep_all: bool) -> Computed:
        """Compute chunk [n] behind the newest slot, from a position as the model counts. The cache's end stays."""

        def by_the_model() -> torch.Tensor:
            return self._by_modules(chunk, first, keep_all=keep_all)

        logits = self.blocks.tokens(chunk, first, by_the_model, keep_all=keep_all)
        return by_the_model() if logits is None else logits, *self.phase.newest

    def _by_modules(self, chunk: Tokens, first: int, *, keep_all: bool) -> torch.Tensor:
        served, cache = self._served, self._cache
        positions = torch.arange(first, first + len(chunk), device=served.device)[None]
        single = len(chunk) == 1 and not cache.own
        packed = single and served.kv_heads < served.query_heads and packs(served.model)
        with cache.forward():
            out = served.model(
                **chunk.inputs(served.device, served.dtype),
                attention_mask=open_mask(cache.length + 1) if packed else None,
                position_ids=positions,
                **{self._cache_argument: cache},
                use_cache=True,
                logits_to_keep=0 if keep_all else 1,
            )
        logits: torch.Tensor = out.logits[0]
        return logits

    def ahead(self, position: int, chunk: Tokens) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Compute chunk [n] behind the newest slot, and leave the end where it is.

        Return logits [n, V], and the rotation that a later `commit` of the cache takes: cos, sin [n, rotary_dim / 2].
        """
        end = self._cache.end
        try:
            logits = self.forward_at(position, chunk, keep_all=True)
        finally:
            self._cache.end = end
        cos, sin = self.newest
        return logits, cos, sin

    @torch.no_grad()
    def put_before(self, tokens: Tokens, position: int, first_slot: int, chunk_tokens: int) -> Generator[None]:
        """Compute the KV of recalled or soft tokens from a frame position on, over what stands before `first_slot`.

        It yields between two chunks. Until it is at its end, or closed, the cache computes nothing else.

        Layers that are not archived hold the state of the newest text, which stands behind these tokens. So they start
        empty here. Their state is put back afterwards, and what was recalled does not change it.
        """
        cache = self._cache
        own = cache.own.snapshot()
        cache.own.empty()
        try:
            yield from self._written(tokens, position, first_slot, chunk_tokens)
        finally:
            cache.own.restore(own)

    @torch.no_grad()
    def write(self, tokens: Tokens, position: int, first_slot: int, chunk_tokens: int) -> None:
        """Compute tokens from a frame position on into slots from `first_slot` on, over what stands before these."""
        for _ in self._written(tokens, position, first_slot, chunk_tokens):
            pass

    def _written(self, tokens: Tokens, position: int, first_slot: int, chunk_tokens: int) -> Generator[None]:
        end = self._cache.end
        self._cache.end = first_slot
        try:
            for first in range(0, len(tokens), chunk_tokens):
                if first > 0:
                    yield
                self.forward_at(position + first, tokens[first : first + chunk_tokens], keep_all=False)
        finally:
            self._cache.end = end

    @torch.no_grad()
    def read_again(self, tokens: Tokens, next_position: int, chunk_tokens: int) -> None:
        """Read the newest tokens of the cache again, for the state of the layers that are not archived.

        That state is exact when nothing has left the frame, else what these layers make of the tokens that stayed.
        """
        self._cache.end -= len(tokens)
        for first in range(0, len(tokens), chunk_tokens):
            chunk = tokens[first : first + chunk_tokens]
            self.forward_at(next_position - len(tokens) + first, chunk, keep_all=False)


@dataclasses.dataclass(frozen=True)
class _PendingForward:
    """Tokens that wait to be computed, together with other frames'."""

    computing: FrameForward
    chunk: Tokens
    first: int  # position of the first, as the model counts
    keep_all: bool
    thread: int

    @property
    def model(self) -> Any:
        return self.computing._served.model

    @property
    def positions(self) -> Hashable:
        return self.computing.positions

    def tokens(self) -> StreamTokens:
        return StreamTokens(self.computing._cache, self.chunk.ids, self.first, self.keep_all, self.thread)

    def alone(self) -> Computed:
        with observe_as(self.thread):
            return self.computing.alone(self.chunk, self.first, keep_all=self.keep_all)

    def in_one_call(self, streams: Sequence[PendingForward]) -> list[tuple[torch.Tensor, slice]] | None:
        pending = [stream for stream in streams if isinstance(stream, _PendingForward)]
        steps = [one.computing.blocks for one in pending]
        fits = len(pending) == len(streams) and sum(len(one.chunk) for one in pending) <= MOST_TOKENS
        if not fits or not all(step.takes(one.chunk) for step, one in zip(steps, pending, strict=True)):
            return None
        parts = [StepTokens(one.chunk, one.first, one.keep_all) for one in pending]

        def by_the_model() -> torch.Tensor:
            return self.computing._by_modules(self.chunk, self.first, keep_all=self.keep_all)

        return BlockStep.compute_batch(steps, parts) if steps[0].tried(parts[0], by_the_model) else None

    def remember(self) -> Callable[[], None]:
        own = self.computing._cache.own  # what is written to slots lies behind the newest one
        return functools.partial(own.restore, own.snapshot())

    def rotation(self, span: slice) -> tuple[torch.Tensor, torch.Tensor]:
        cos, sin = self.computing.phase.newest
        return cos[span], sin[span]
