"""Zones of keys and values: what leaves them is archived un-rotated; what comes back is restored or read again."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

import numpy.typing as npt
import torch

import everlong._core as _core
from everlong.errors import NotFiniteError
from everlong.frame.anchor_zone import AnchorZone
from everlong.frame.budget import FrameBytes, frame_bytes
from everlong.frame.checkpoint import Checkpoint, KvState
from everlong.frame.hidden_slots import hidden_slots
from everlong.frame.kept_zone import KeptZone
from everlong.frame.offers import Offers
from everlong.frame.pages import ArchivedPages
from everlong.frame.part import Hidden
from everlong.frame.parts import needs_of
from everlong.frame.recalled_zone import RecalledZone
from everlong.frame.stream import Stream
from everlong.frame.tombstone_mass import TombstoneMass
from everlong.frame.transfer import Archived
from everlong.frame.zones import PreparedRecall, Zones
from everlong.kv_cache.buffers import Buffers
from everlong.kv_cache.cache import ResidentCache
from everlong.kv_cache.forward import FrameForward
from everlong.kv_cache.undo import Undo
from everlong.models.attach import AttachedModel
from everlong.models.tokens import Tokens


class KvZones(Zones):
    """Zones in the slots of a ResidentCache that the model attends to."""

    def __init__(
        self,
        served: AttachedModel,
        stream: Stream,
        soft_id: int,
        opening: Sequence[int],
        buffers: Buffers | None = None,
    ) -> None:
        """opening: tokens that stand in for sinks which are hidden. buffers: as `ResidentCache` takes them."""
        self._opening, self._soft_id = opening, soft_id
        self._served, self._stream = served, stream
        config = stream.config
        self.cache = ResidentCache(
            served,
            frame_tokens=config.frame.tokens,
            sink_tokens=config.frame.sink_tokens,
            front_tokens=config.front_tokens,
            kept_tokens=config.frame.kept_tokens,
            buffers=buffers,
        )
        self.keeps_state = bool(self.cache.own) or config.frame.anchor_zone_tokens > 0 or config.frame.kept_tokens > 0
        self.pages = ArchivedPages(served, stream.memory.core, config)
        self.stores_beside = self.pages.transfer.copies
        self.computing = FrameForward(served, self.cache, functools.partial(hidden_slots, stream, self.cache))
        self._undo = Undo(self.cache)
        self._own_since = 0  # the first token that layers with own state have seen
        self.anchors = AnchorZone(stream, self.cache, served.first_position)
        self._kept = KeptZone(stream, self.cache, self.pages, served.first_position)
        # The rotation of tokens that were computed ahead and wait behind the newest slot: cos, sin [n, rotary_dim / 2].
        self._ahead: tuple[torch.Tensor, torch.Tensor] | None = None
        self._recalled = RecalledZone(stream, self.cache, self.pages, self._kept, self.computing, soft_id)

    def detach(self) -> None:
        self.computing.close()

    def forks(self, streams: Sequence[Stream]) -> list[KvZones]:
        """Return zones of forks of the stream, with what these hold. On a CPU they share it until they change it."""
        copies = self.cache.buffers.copies(slice(self.cache.begin, self.cache.end), len(streams))
        made = []
        for stream, buffers in zip(streams, copies, strict=True):
            made.append(KvZones(self._served, stream, self._soft_id, self._opening, buffers))
            made[-1].cache.take_over(self.cache)
        return made

    @property
    def resident_tokens(self) -> int:
        self.cache.hide(hidden_slots(self._stream, self.cache))
        return self.cache.length

    @property
    def bytes(self) -> FrameBytes:
        return frame_bytes(self._served, self._stream.config)

    # --- computing

    def compute(self, chunk: Tokens, *, keep_all: bool, needed: bool) -> torch.Tensor:
        self._ahead = None
        cache, end = self.cache, self.cache.end
        # A token that is generated comes alone. A copy of large states would cost more than it does.
        own = cache.own.snapshot() if cache.own.windows_alone or len(chunk) > 1 else None
        try:
            logits = self.computing.forward_at(self._stream.os.next_position(), chunk, keep_all=keep_all)
            self._require_finite(chunk, end)
        except NotFiniteError:
            cache.buffers.empty(end, cache.end)
            cache.end = end
            if own is not None:
                cache.own.restore(own)
            self._stream.steps.broken = own is None
            raise
        except BaseException:
            # What it wrote lies behind the newest slot and does not count. Only layers with own state may be half done.
            self._stream.steps.broken = bool(cache.own) or cache.end != end
            raise
        return logits

    def room_ahead(self) -> int:
        # A layer with own state has no way back to before a token.
        if self.cache.own or hidden_slots(self._stream, self.cache) is not None:
            return 0
        return min(self._stream.os.room(), self.cache.slots - self.cache.end)

    def compute_ahead(self, chunk: Tokens) -> torch.Tensor | None:
        self._ahead, first = None, self.cache.end
        logits, cos, sin = self.computing.ahead(self._stream.os.next_position(), chunk)
        if self.cache.buffers.not_finite(first, first + len(chunk)) is not None:
            self.cache.buffers.empty(first, first + len(chunk))
            return None  # the first of them may be fine: it is computed by itself
        self._ahead = cos, sin
        return logits

    def adopt(self) -> bool:
        if self._ahead is None:
            return False
        cos, sin = self._ahead
        if len(cos) == 0:
            return False
        self.cache.commit(cos[:1], sin[:1])
        self._ahead = cos[1:], sin[1:]
        return True

    def _require_finite(self, chunk: Tokens, end: int) -> None:
        """Raise NotFiniteError for a key or value of the chunk, whose slots begin at `end`, that is NaN or infinite.

        All that came behind it would be wrong as well, and no archive takes it.
        """
        wrong = self.cache.buffers.not_finite(end, self.cache.end)
        if wrong is None:
            return
        served = self._served
        # The first layer is where it began. From there it spreads to other tokens, to earlier ones by 0 * NaN.
        at, token = min(wrong.nonzero().tolist(), key=lambda found: (served.archived[found[0]], found[1]))
        dtype = str(served.dtype).removeprefix("torch.")
        remedy = "load the model in bfloat16 or float32" if served.dtype == torch.float16 else "check its weights"
        raise NotFiniteError(
            f"layer {served.archived[at]} computed a key or value that is not finite, for token "
            f"{self._stream.os.stream_end + token} of the stream (id {int(chunk.ids[token])}). The model is in "
            f"{dtype}, where numbers may overflow: {remedy}. Nothing that was computed with it is kept"
        )

    @contextlib.contextmanager
    def heeding_tombstones(self, heeded: bool) -> Iterator[Callable[[Hidden], Sequence[float]]]:
        part = self._stream.parts.tombstone_scorer
        if not heeded or part is None or self.cache.anchors.tombstone_k.shape[2] == 0:
            yield lambda hidden: ()
            return
        needs = needs_of(part)
        mass = TombstoneMass(self._served, needs.heads)

        def scores(hidden: Hidden) -> Sequence[float]:
            os = self._stream.os
            first = os.next_position() + self._served.first_position
            stones = self.cache.tombstone_slots
            newest = torch.zeros(0, stones.stop - stones.start, device="cpu")
            if needs.heads:
                newest = mass.of(tap, self.cache, first, newest=1)[-1]
            wanted = {layer: hidden[layer] for layer in needs.hidden_layers}
            return part.score_tombstones(os.stream_end, wanted, newest)

        with mass.tap() as tap:
            yield scores

    # --- archiving and evicting

    def payload(self, action: _core.Archive, rolling_begin: int) -> Callable[[], Archived]:
        buffers, tokens, archive = self.cache.buffers, action.end - action.begin, self._stream.config.archive
        first_slot = self.cache.slot_of(action.begin, rolling_begin)

        def encode(out: torch.Tensor, refused: torch.Tensor | None) -> None:
            buffers.archive(first_slot, tokens, out, refused, page_tokens=archive.page_tokens, codec=archive.codec)

        def require_archived(refused: torch.Tensor) -> None:
            buffers.require_archived(refused, first_slot, page_tokens=archive.page_tokens, codec=archive.codec)

        return self.pages.transfer.archive(self.pages.block_bytes(tokens), encode, require_archived)

    def evict(self, action: _core.Evict, rolling_begin: int) -> None:
        self._ahead = None
        keeps, chosen = bool(action.keeps), self._kept.changes
        if keeps or chosen:
            self._undo.before_change("front")
        if keeps:
            self.anchors.keep(action, rolling_begin)
        if chosen:
            self._undo.before_change("kept")
            self._kept.keep(rolling_begin)
        if keeps or chosen:
            self.cache.lay_front()
        self._undo.before_change("rolling")
        self.cache.evict(action.tokens, action.delta)

    def chosen(self, action: _core.Trim, rolling_begin: int) -> list[int]:
        return self._kept.chosen(action, rolling_begin)

    def chosen_tensors(
        self, action: _core.Archive, chosen: Sequence[int], rolling_begin: int
    ) -> Mapping[str, npt.NDArray[Any]]:
        return self._kept.tensors(action, chosen, rolling_begin)

    # --- recalling

    def prepare(self, offers: Offers) -> PreparedRecall:
        return self._recalled.prepare(offers)

    def place_in_steps(self, placements: Sequence[_core.Placement], prepared: PreparedRecall) -> Generator[None]:
        self._ahead = None
        self._undo.before_change("front")
        self._kept.show()
        yield from self._recalled.place_in_steps(placements, prepared)

    def place(self, placements: Sequence[_core.Placement], prepared: PreparedRecall) -> None:
        for _ in self.place_in_steps(placements, prepared):
            pass

    # --- between processes, and in a branch

    def narrow(self) -> None:
        """Show what the stream shows alone.

        Sinks that do not pass give way to the chat template's beginning: attention needs something to rest on. Layers
        with own state have seen all of the stream. So they begin anew, and what is shown of rolling is read again. With
        `answer.recall_mode` "text" that is read again in any case, so that nothing of it was computed over other text.
        """
        self._ahead = None
        stream, cache, os = self._stream, self.cache, self._stream.os
        visible, again = stream.visible, bool(cache.own) or stream.config.answer.recall_mode == "text"
        assert visible is not None
        self._undo.before_change("front")
        runs: list[tuple[torch.Tensor, int, int]] = []
        if not visible.whole(0, os.sinks):
            opening = list(itertools.islice(itertools.cycle(self._opening), os.sinks))
            runs.append((torch.tensor(opening, dtype=torch.int64, device="cpu"), 0, cache.begin))
        elif again and os.sinks > 0:
            runs.append((stream.read(0, os.sinks), 0, cache.begin))
        if again:
            self._undo.before_change("rolling")
            cache.own.empty()
            first_position, begin = os.next_position() - os.stream_end, os.rolling[0]
            runs += [
                (stream.read(first, last), first_position + first, cache.slot_of(first, begin))
                for first, last in visible.runs(*os.rolling)
            ]
        for ids, position, slot in runs:
            self.computing.write(Tokens(ids), position, slot, stream.config.frame.chunk_tokens)
        cache.exchange_sinks(os.sinks)

    def is_whole(self, last: Checkpoint) -> bool:
        own = last.state is not None and len(last.state.own) > 0
        return last.anchor_zone is not None and (own or not self.cache.own)

    def state(self) -> KvState:
        anchors, kept = self.cache.anchors, self.cache.kept
        return KvState(
            self.cache.own.tensors(),
            anchors if len(anchors) > 0 else None,
            kept.in_order() if len(kept) > 0 else None,
        )

    def begin_anew(self) -> None:
        self._ahead = None
        self.cache.begin_anew()

    @property
    def own_from(self) -> int | None:
        own = self.cache.own
        return max(self._own_since, own.seen_from(self._stream.os.stream_end)) if own else None

    def come_back(self, stream_end: int, last: Checkpoint, archived_until: int | None) -> None:
        cache, os, state, stood_at = self.cache, self._stream.os, last.state, last.next_position
        placements = self._stream.resume(stream_end, last, archived_until)
        # Sinks of a stream that nothing has left may grow: the next tokens take the slots that are free for them.
        cache.begin = cache.rolling_slot - (os.sinks if os.evicted else self._stream.config.frame.sink_tokens)
        cache.end = cache.begin + sum(p.tokens for p in placements)
        self.pages.restore(placements, cache.begin, cache)
        self._own_since = 0
        if cache.own:
            if state is not None and state.own and stood_at is not None:
                cache.own.load(state.own, self._served.device, self._served.dtype)
                cache.own.turn(os.next_position() - stood_at)
            else:
                self._own_since = first = os.rolling[0] if os.evicted else 0
                if first < os.stream_end:
                    ids = self._stream.read(first, os.stream_end)
                    self.computing.read_again(Tokens(ids), os.next_position(), self._stream.config.frame.chunk_tokens)
                self.pages.restore(placements, cache.begin, cache)
        anchored = state is not None and state.anchors is not None and bool(os.anchor_positions)
        if state is not None and state.anchors is not None and anchored:
            self.anchors.set(state.anchors.to(self._served.device), os.anchor_positions)
        self._kept.come_back(None if state is None else state.kept, last)
        if anchored or os.kept_held:
            cache.lay_front()

    def remember(self) -> Callable[[], None]:
        go_back = self._undo.remember()

        def put_back() -> None:
            self._ahead = None
            go_back()

        return put_back
