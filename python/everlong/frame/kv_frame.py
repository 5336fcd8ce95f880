"""A frame of keys and values: what leaves it is archived un-rotated; what comes back is restored or read again."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

import everlong._core as _core
from everlong.config import MemoryConfig
from everlong.errors import MemoryNotFoundError
from everlong.frame.anchors import AnchorMasters
from everlong.frame.budget import FrameBytes, frame_bytes, require_budget
from everlong.frame.cache import ResidentCache, SlotSnapshot
from everlong.frame.checkpoint import Checkpoint, KvState
from everlong.frame.details import SoftBlock, soft_tokens
from everlong.frame.frame import Frame, Page, Recalled, identity
from everlong.frame.kept import KeptRows
from everlong.frame.kept_payload import KeptPayload, kept_payload, tensors_of
from everlong.frame.kept_writing import kept_bytes, kept_rows, plain_rows
from everlong.frame.part import Hidden, Rows, Span
from everlong.frame.parts import Parts, needs_of
from everlong.frame.phase import PhaseTap
from everlong.frame.tombstone_mass import TombstoneMass
from everlong.frame.transfer import Archived, PayloadTransfer
from everlong.frame.trimming import best_tokens, worth_of
from everlong.memory import Memory
from everlong.models.attach import ServedModel
from everlong.models.packing import open_mask, packs
from everlong.models.releases import cache_argument
from everlong.models.tokens import Tokens

# The most turns of a 16-bit key before it leaves. Each turn rounds alike; so many add up to some 0.02 to 0.03 % of the
# key each (Llama's shape, bf16), and the archived key keeps that error.
_MOST_TURNS = 16

# front: all slots before rolling; kept: the masters of kept tokens, which change in place
_Zone = Literal["front", "rolling", "kept"]


@dataclasses.dataclass(frozen=True)
class Run:
    """Tokens of an archived page, and where they go."""

    page: _core.PageRef
    first_token: int  # the first token, counted in the page
    tokens: int
    slot: int  # slot of the first token
    position: int  # position of the first token in the frame


@dataclasses.dataclass(frozen=True)
class _Batch:
    """Pages on their way from the memory into a cache."""

    table: torch.Tensor  # int64 [pages, 6], as `ops.restore_kv` reads it
    staged: _core.StagingBuffer
    reads: _core.PendingReads  # reads that fill the buffer


class KvFrame(Frame):
    """A frame of keys and values: the slots of a ResidentCache that the model attends to."""

    served: ServedModel

    @torch.inference_mode(False)  # buffers made in inference mode could be written in that mode alone
    def __init__(
        self,
        served: ServedModel,
        memory: Memory,
        config: MemoryConfig,
        tokenizer: Any,
        parts: Parts | None = None,
    ) -> None:
        require_budget(served, config)
        if served.dtype.itemsize == 2 and config.frame.rolling_tokens > _MOST_TURNS * config.frame.evict_tokens:
            warnings.warn(
                f"frame.evict_tokens={config.frame.evict_tokens}: every eviction turns the keys that stay, and rounds "
                f"them to 16 bits; with {config.frame.rolling_tokens // _MOST_TURNS} or more the error stays small",
                stacklevel=2,
            )
        super().__init__(memory, config, tokenizer, parts)
        self.served = served
        self._cache_argument = cache_argument(served.model)
        self.cache = ResidentCache(
            served,
            frame_tokens=config.frame.tokens,
            sink_tokens=config.frame.sink_tokens,
            front_tokens=config.front_tokens,
            kept_tokens=config.frame.kept_tokens,
        )
        largest_page = memory.core.page_bytes(config.archive.page_tokens)
        self._transfer = PayloadTransfer(served.device, largest_page, self._block_bytes(config.archive.block_tokens))
        # Inside a branch: a copy of each zone from before its first change.
        self._saved: dict[_Zone, SlotSnapshot | None] | None = None
        self._phase = PhaseTap(served)
        weakref.finalize(self, self._phase.close)  # for a frame that nobody closed
        try:
            self._resume()
        except BaseException:
            self._phase.close()
            raise

    def _detach(self) -> None:
        self._phase.close()

    @property
    def resident_tokens(self) -> int:
        return self.cache.length

    @property
    def bytes(self) -> FrameBytes:
        return frame_bytes(self.served, self.config)

    @property
    def _keeps_state(self) -> bool:
        return bool(self.cache.own) or self.config.frame.anchor_zone_tokens > 0 or self.config.frame.kept_tokens > 0

    def _is_whole(self, last: Checkpoint) -> bool:
        own = last.state is not None and len(last.state.own) > 0
        return last.anchor_zone is not None and (own or not self.cache.own)

    def _state(self) -> KvState:
        anchors = self.cache.anchors
        kept = self.cache.kept
        return KvState(
            self.cache.own.tensors(),
            anchors if len(anchors) > 0 else None,
            kept.in_order() if len(kept) > 0 else None,
        )

    # --- computing

    def _compute(self, chunk: Tokens, *, keep_all: bool, needed: bool) -> torch.Tensor:
        end = self.cache.end
        try:
            return self._forward_at(self.os.next_position(), chunk, keep_all=keep_all)
        except BaseException:
            # What it wrote lies behind the newest slot and does not count. Only layers with own state may be half done.
            self._broken = bool(self.cache.own) or self.cache.end != end
            raise

    def _forward_at(self, position: int, chunk: Tokens, *, keep_all: bool) -> torch.Tensor:
        """Put chunk [n] behind the newest slot, at frame positions position, position + 1 ..."""
        first = position + self.served.first_position
        device = self.served.device
        positions = torch.arange(first, first + len(chunk), device=device)[None]
        alone = len(chunk) == 1 and not self.cache.own
        packed = alone and self.served.kv_heads < self.served.query_heads and packs(self.served.model)
        with self.cache.forward():
            out = self.served.model(
                **chunk.inputs(device, self.served.dtype),
                attention_mask=open_mask(self.cache.length + 1) if packed else None,
                position_ids=positions,
                **{self._cache_argument: self.cache},
                use_cache=True,
                logits_to_keep=0 if keep_all else 1,
            )
        self.cache.commit(*self._phase.newest)
        logits: torch.Tensor = out.logits[0]
        return logits

    @contextlib.contextmanager
    def _heeding_tombstones(self, heeded: bool) -> Iterator[Callable[[Hidden], Sequence[float]]]:
        part = self.parts.last("token")
        if not heeded or part is None or self.cache.anchors.tombstone_k.shape[2] == 0:
            yield lambda hidden: ()
            return
        needs = needs_of(part)
        mass = TombstoneMass(self.served, needs.heads)

        def scores(hidden: Hidden) -> Sequence[float]:
            first = self.os.next_position() + self.served.first_position
            stones = self.cache.tombstone_slots
            newest = torch.zeros(0, stones.stop - stones.start, device="cpu")
            if needs.heads:
                newest = mass.of(tap, self.cache, first, newest=1)[-1]
            wanted = {layer: hidden[layer] for layer in needs.hidden_layers}
            found: Sequence[float] = part.token(self.os.stream_end, wanted, newest)
            return found

        with mass.tap() as tap:
            yield scores

    # --- archiving and evicting

    @property
    def _stores_beside(self) -> bool:
        return self._transfer.copies

    def _payload(self, action: _core.Archive, rolling_begin: int) -> Callable[[], Archived]:
        cache, tokens = self.cache, action.end - action.begin
        first_slot = cache.slot_of(action.begin, rolling_begin)
        page_tokens, codec = self.config.archive.page_tokens, self.config.archive.codec

        def encode(out: torch.Tensor, refused: torch.Tensor | None) -> None:
            cache.archive(first_slot, tokens, out, refused, page_tokens=page_tokens, codec=codec)

        def require_archived(refused: torch.Tensor) -> None:
            cache.require_archived(refused, first_slot, page_tokens=page_tokens, codec=codec)

        return self._transfer.archive(self._block_bytes(tokens), encode, require_archived)

    def _evict(self, action: _core.Evict, rolling_begin: int) -> None:
        if action.keeps:
            self._keep_anchors(action, rolling_begin)
        chosen = self._keep_chosen(rolling_begin)
        if action.keeps or chosen:
            self.cache.lay_front()
        self._keep_before_change("rolling")
        self.cache.evict(action.tokens, action.delta)

    def _keep_anchors(self, action: _core.Evict, rolling_begin: int) -> None:
        """Take what the anchor zone holds from now on, before it leaves."""
        cache = self.cache
        self._keep_before_change("front")
        anchors = cache.anchors
        for keep in action.keeps:
            k, v = cache.unrotated(cache.slot_of(keep.begin, rolling_begin), keep.end - keep.begin)
            if not keep.tombstone:
                anchors = anchors.with_anchor(k, v, dropped=keep.dropped)
                continue
            anchors = anchors.with_tombstone(*self._tombstone(keep, k, v))
            if keep.merged >= 0:
                anchors = anchors.with_merged(keep.merged, keep.merged_tokens, keep.next_tokens)
        self._set_anchors(anchors, action.anchor_positions)

    def _tombstone(self, keep: _core.Keep, k: torch.Tensor, v: torch.Tensor) -> Rows:
        """Return rows whose mean stands for a span of k, v [L, Hkv, n, D]: all, or the one row that a part makes.

        A part makes none of tokens that an earlier process read: their states are not known.
        """
        part = self.parts.mourner
        if part is not None:
            tokens = keep.end - keep.begin
            hidden = self._unarchived_hidden.span(self.os.stream_end - keep.begin, tokens)
            if hidden.keys() >= set(needs_of(part).hidden_layers):
                # The ids of tokens that were archived long ago are not at hand. The part uses places alone here.
                ids = torch.zeros(tokens, dtype=torch.int64, device="cpu")
                rows: Rows = part.leaving(Span(keep.begin, ids, hidden, lambda: (k, v)), (k, v))
                return rows
        return k, v

    def _set_anchors(self, anchors: AnchorMasters, positions: Sequence[int]) -> None:
        self.cache.set_anchors(anchors, [position + self.served.first_position for position in positions])

    def _chosen(self, action: _core.Trim, rolling_begin: int) -> list[int]:
        tokens = action.end - action.begin
        # The first block begins with sinks, which are not in rolling's slots.
        in_rolling = max(action.begin, rolling_begin)
        block = Span(
            begin=action.begin,
            ids=self._ids_of_block(action.begin, action.end),
            hidden=self._unarchived_hidden.span(self.os.stream_end - action.begin, tokens),
            kv=lambda: self._rows_of_block(action.begin, in_rolling, action.end, rolling_begin),
        )
        return best_tokens(worth_of(self.parts.last("worth"), block), action.begin, action.runs, action.tokens)

    def _rows_of_block(self, begin: int, in_rolling: int, end: int, rolling_begin: int) -> Rows:
        """Return k, v [L, Hkv, end - begin, D] fp32, un-rotated."""
        cache = self.cache
        runs = [(begin, in_rolling), (in_rolling, end)]
        rows = [
            cache.unrotated(cache.slot_of(first, rolling_begin), last - first) for first, last in runs if last > first
        ]
        return torch.cat([k for k, _ in rows], dim=2), torch.cat([v for _, v in rows], dim=2)

    def _keep_chosen(self, rolling_begin: int) -> bool:
        """Take what the kept zone holds from now on, before it leaves. Return whether anything changed there."""
        held = self.os.kept_held
        if self.cache.kept.tokens == set(held):
            return False
        self._keep_before_change("front")
        self._keep_before_change("kept")
        slots = {token: self.cache.slot_of(token, rolling_begin) for token in held if token >= rolling_begin}
        self._take_written(self.cache.keep(slots, held))
        self._show_kept()
        return True

    def _take_written(self, new: Sequence[int]) -> None:
        """Use what the writer stored for tokens that were just taken. Tokens without it stay as they were read."""
        core, part = self.memory.core, self.parts.keeper
        while part is not None and new:
            try:
                (page,) = core.blocks.pages_of(self.os.stream, new[0], new[0] + 1)
                block = core.blocks.info(page.block)
            except (MemoryNotFoundError, ValueError):
                new = new[1:]
                continue
            new = [token for token in new if not block.begin <= token < block.end]
            written = kept_payload(core, block.id, part.id, self._block_bytes)
            if written is not None:
                self.cache.kept.write(written.tokens, self._plain_rows(written))

    def _plain_rows(self, written: KeptPayload) -> KeptRows:
        page_tokens, served = self.config.archive.page_tokens, self.served
        full, rest = divmod(len(written.tokens), page_tokens)
        return plain_rows(
            written.payload,
            [page_tokens] * full + [rest] * (rest > 0),
            (served.layers, served.kv_heads, served.head_dim),
            self.memory.core.page_bytes,
            page_tokens=page_tokens,
            codec=self.config.archive.codec,
            dtype=served.dtype,
        )

    def _show_kept(self) -> None:
        os = self.os
        self.cache.show_kept(os.kept_shown, os.kept_position + self.served.first_position)

    # --- recalling

    def _chosen_tensors(
        self, action: _core.Archive, chosen: Sequence[int], rolling_begin: int
    ) -> Mapping[str, npt.NDArray[Any]]:
        part = self.parts.keeper
        if self.config.answer.recall_mode != "kept" and part is None:
            return tensors_of(action.begin, chosen)
        first = max(action.begin, rolling_begin)  # before it are sinks, which are never chosen
        hidden = self._unarchived_hidden.span(self.os.stream_end - first, action.end - first)
        if part is not None and not hidden.keys() >= set(needs_of(part).hidden_layers):
            return tensors_of(action.begin, chosen)  # the payload is made in the background
        places = torch.tensor(sorted(chosen), dtype=torch.int64, device="cpu") - first
        rows = self.cache.unrotated(self.cache.slot_of(first, rolling_begin), action.end - first)
        span = Span(first, self._ids_of_block(first, action.end), hidden, lambda: rows, places)
        archive = self.config.archive
        payload = kept_bytes(kept_rows(part, span), page_tokens=archive.page_tokens, codec=archive.codec)
        return tensors_of(action.begin, chosen, payload, None if part is None else part.id)

    def _kept_payloads(self, pages: Sequence[_core.PageRef]) -> Mapping[int, KeptPayload]:
        if self.config.answer.recall_mode != "kept" or not self.os.evicted:
            return {}
        part = self.parts.keeper
        writer = None if part is None else part.id
        blocks = {page.block for page in pages}
        found = {block: kept_payload(self.memory.core, block, writer, self._block_bytes) for block in blocks}
        return {block: payload for block, payload in found.items() if payload is not None}

    def _as_details(self, recalled: Recalled) -> tuple[Sequence[_core.PageRef], Mapping[int, SoftBlock]]:
        details, mode = self.parts.details, self.config.answer.recall_mode
        if details is None or mode not in ("detail", "both") or not self.os.evicted:
            return recalled.pages, {}
        if mode == "both":
            return recalled.pages, details.of(recalled.blocks)
        last_first = dict.fromkeys(page.block for page in reversed(recalled.pages))
        having = {block for block in last_first if details.has(block)}
        blocks = recalled.blocks or [block for block in reversed(last_first) if block in having]
        return [page for page in recalled.pages if page.block not in having], details.of(blocks)

    def _place(
        self,
        placements: Sequence[_core.Placement],
        temperature: Mapping[Page, float],
        best: Sequence[_core.PageRef],
        kept: Mapping[int, KeptPayload],
        soft: Mapping[int, SoftBlock],
    ) -> None:
        self._keep_before_change("front")
        self._show_kept()
        first_slot = self.cache.open_recalled(sum(p.tokens for p in placements))
        if not placements:
            return
        of_details = [index for index, placement in enumerate(placements) if placement.details]
        computed = slice(of_details[0], of_details[-1] + 1) if of_details else self._read_anew(placements, best)
        first_computed = first_slot + sum(p.tokens for p in placements[: computed.start])
        behind = first_computed + sum(p.tokens for p in placements[computed])
        for restored, slot in ((placements[: computed.start], first_slot), (placements[computed.stop :], behind)):
            self._restore(restored, slot, kept)
            self._cool(restored, slot, temperature)
        if of_details:
            tokens = soft_tokens([soft[placement.page.block] for placement in placements[computed]], self._soft_id)
            with self.parts.answering(self):  # what reads Detail Tokens was trained beside this
                self._compute_recalled(tokens, placements[computed.start].position, first_computed)
        elif placements[computed]:
            tokens = Tokens(self._token_ids(placements[computed]))
            self._compute_recalled(tokens, placements[computed.start].position, first_computed)
            self._cool(placements[computed], first_computed, temperature)

    def _cool(self, placements: Sequence[_core.Placement], first_slot: int, temperature: Mapping[Page, float]) -> None:
        slot = first_slot
        for placement in placements:
            self.cache.cool(slot, placement.tokens, temperature.get(identity(placement.page), 1))
            slot += placement.tokens

    def _read_anew(self, placements: Sequence[_core.Placement], best: Sequence[_core.PageRef]) -> slice:
        """Return which of the placements are read again. The others are restored."""
        everything, nothing = slice(0, len(placements)), slice(len(placements), len(placements))
        if self.config.answer.recall_mode != "auto":
            return everything if self.config.answer.recall_mode == "text" else nothing
        breaks = [
            index for index, (one, next_) in enumerate(itertools.pairwise(placements), 1) if not _goes_on(one, next_)
        ]
        if not breaks:
            return nothing
        runs = [slice(*span) for span in itertools.pairwise([0, *breaks, len(placements)])]
        named = set(map(identity, best))
        return next((run for run in runs if any(identity(p.page) in named for p in placements[run])), runs[-1])

    @torch.no_grad()
    def _compute_recalled(self, tokens: Tokens, position: int, first_slot: int) -> None:
        """Compute the KV of recalled or soft tokens from a frame position on, over what stands before `first_slot`.

        Layers that are not archived hold the state of the newest text, which stands behind these tokens. So they start
        empty here. Their state is put back afterwards, and what was recalled does not change it.
        """
        cache, limit = self.cache, self.config.frame.chunk_tokens
        own, end = cache.own.snapshot(), cache.end
        cache.own.empty()
        cache.end = first_slot
        try:
            for first in range(0, len(tokens), limit):
                chunk = tokens[first : first + limit]
                self._forward_at(position + first, chunk, keep_all=False)
        finally:
            cache.end = end
            cache.own.restore(own)

    def _restore(
        self,
        placements: Sequence[_core.Placement],
        first_slot: int,
        kept: Mapping[int, KeptPayload] = MappingProxyType({}),
    ) -> None:
        """Restore what is placed to consecutive slots: the payload of a block in `kept`, the pages of any other."""
        runs: list[Run] = []
        slot = first_slot
        of_kept: dict[int, list[Run]] = {}
        for placement in placements:
            run = Run(placement.page, placement.first_token, placement.tokens, slot, placement.position)
            (of_kept.setdefault(run.page.block, []) if run.page.block in kept else runs).append(run)
            slot += placement.tokens
        self.restore_runs(runs, self.cache)
        for block, chosen in of_kept.items():
            self._restore_kept(kept[block], chosen)

    def _restore_kept(self, kept: KeptPayload, runs: Sequence[Run]) -> None:
        page_tokens, count = self.config.archive.page_tokens, len(kept.tokens)
        page_bytes = self.memory.core.page_bytes(page_tokens)
        rows = []
        for run in runs:
            done = 0
            while done < run.tokens:
                page, first = divmod(kept.place_of(run.page.begin + run.first_token + done), page_tokens)
                length = min(page_tokens, count - page * page_tokens)
                tokens = min(run.tokens - done, length - first)
                position = run.position + done + self.served.first_position
                rows.append([page * page_bytes, length, first, tokens, run.slot + done, position])
                done += tokens
        table = torch.tensor(rows, dtype=torch.int64, device="cpu")
        payload = torch.from_numpy(kept.payload).to(self.served.device)
        self.cache.write_pages(payload, table, page_tokens=page_tokens, codec=self.config.archive.codec)

    def restore_runs(self, runs: Sequence[Run], cache: ResidentCache) -> None:
        """Read runs from the memory and write them to their slots of a cache, one batch while the next is read.

        Raise MemoryNotFoundError where a page is not there (any more).
        """
        being_read: _Batch | None = None
        for batch in self._batches(runs):
            next_batch = self._start_reading(batch)
            if being_read is not None:
                self._write(being_read, cache)
            being_read = next_batch
        if being_read is not None:
            self._write(being_read, cache)

    def _batches(self, runs: Sequence[Run]) -> Iterator[list[Run]]:
        batch: list[Run] = []
        size = 0
        for run in runs:
            page_bytes = self._page_bytes(run)
            if batch and size + page_bytes > self._transfer.batch_bytes:
                yield batch
                batch, size = [], 0
            batch.append(run)
            size += page_bytes
        if batch:
            yield batch

    def _start_reading(self, runs: Sequence[Run]) -> _Batch:
        table = torch.zeros(len(runs), 6, dtype=torch.int64, device="cpu")
        offset = 0
        for row, run in enumerate(runs):
            page_tokens = run.page.end - run.page.begin
            position = run.position + self.served.first_position
            entries = [offset, page_tokens, run.first_token, run.tokens, run.slot, position]
            table[row] = torch.tensor(entries, device="cpu")
            offset += self._page_bytes(run)
        staged = self._transfer.stage(offset)
        pages = [run.page for run in runs]
        reads = self.memory.core.blocks.start_read_pages(pages, 0, self.served.layers, staged.array)
        return _Batch(table, staged, reads)

    def _write(self, batch: _Batch, cache: ResidentCache) -> None:
        batch.reads.wait()
        with self._transfer.on_device(batch.staged) as payload:
            cache.write_pages(
                payload, batch.table, page_tokens=self.config.archive.page_tokens, codec=self.config.archive.codec
            )

    def _block_bytes(self, tokens: int) -> int:
        full, rest = divmod(tokens, self.config.archive.page_tokens)
        page_bytes = self.memory.core.page_bytes
        return full * page_bytes(self.config.archive.page_tokens) + (page_bytes(rest) if rest else 0)

    def _page_bytes(self, run: Run) -> int:
        return self.memory.core.page_bytes(run.page.end - run.page.begin)

    def _come_back(self, stream_end: int, last: Checkpoint, archived_until: int | None) -> None:
        state, stood_at = last.state, last.next_position
        placements = self._resident_again(stream_end, last, archived_until)
        # Sinks of a stream that nothing has left may grow: the next tokens take the slots that are free for them.
        sinks = self.os.sinks if self.os.evicted else self.config.frame.sink_tokens
        self.cache.begin = self.cache.rolling_slot - sinks
        self.cache.end = self.cache.begin + sum(p.tokens for p in placements)
        self._restore(placements, self.cache.begin)
        if self.cache.own:
            if state is not None and state.own and stood_at is not None:
                self.cache.own.load(state.own, self.served.device, self.served.dtype)
                self.cache.own.turn(self.os.next_position() - stood_at)
            else:
                self._reread()
                self._restore(placements, self.cache.begin)
        anchored = state is not None and state.anchors is not None and bool(self.os.anchor_positions)
        if state is not None and state.anchors is not None and anchored:
            self._set_anchors(state.anchors.to(self.served.device), self.os.anchor_positions)
        held = self.os.kept_held
        if held and state is not None and state.kept is not None and last.kept is not None:
            self.cache.kept.hold(held)
            self.cache.kept.write(last.kept.held, state.kept)
            self._show_kept()
        if anchored or held:
            self.cache.lay_front()

    @torch.no_grad()
    def _reread(self) -> None:
        """Read the tokens in the frame again, for the state of the layers that are not archived.

        That state is exact when nothing has left the frame, else what these layers make of the tokens that stayed.
        """
        cache, first = self.cache, self.os.rolling[0] if self.os.evicted else 0
        end = self.os.stream_end
        if first == end:
            return
        ids = torch.from_numpy(self.memory.core.blocks.token_ids(self.os.stream, first, end).astype(np.int64))
        position = self.os.next_position() - len(ids)
        cache.end -= len(ids)
        for chunk in torch.split(ids, self.config.frame.chunk_tokens):
            self._forward_at(position, Tokens(chunk), keep_all=False)
            position += len(chunk)

    # --- leaving no trace

    def _remember(self) -> Callable[[], None]:
        cache, outer = self.cache, self._saved
        layout, own = cache.layout(), cache.own.snapshot()
        changed: dict[_Zone, SlotSnapshot | None] = {}
        self._saved = changed

        def put_back() -> None:
            for snapshot in changed.values():
                if snapshot is not None:
                    cache.restore(snapshot)
            cache.own.restore(own)
            self._saved = outer
            cache.put_back(layout)

        return put_back

    def _keep_before_change(self, zone: _Zone) -> None:
        if self._saved is None or zone in self._saved:
            return
        cache = self.cache
        if zone == "kept":
            self._saved[zone] = None  # the layout has them
            cache.kept = cache.kept.copy()
        elif zone == "rolling":
            self._saved[zone] = cache.snapshot(cache.rolling_slot, cache.rolling_slots)
        else:
            self._saved[zone] = cache.snapshot(cache.begin, cache.rolling_slot - cache.begin)


def _goes_on(first: _core.Placement, second: _core.Placement) -> bool:
    """Return whether the second run of tokens follows the first directly, or with an anchor in between."""
    follows = second.page.begin == first.page.end or identity(second.page) == identity(first.page)
    return first.page.stream == second.page.stream and follows
