"""The frame at work: runs the model on it and executes what the Memory OS decides, by calling ops. Decides nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import logging
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import safetensors.torch
import torch

from everlong import _core
from everlong.anchors import AnchorMasters
from everlong.attach import ServedModel
from everlong.boundaries import Boundary, TextBoundaries
from everlong.budget import FrameBytes, frame_bytes, require_budget
from everlong.cache import ResidentCache, SlotSnapshot
from everlong.config import MemoryConfig
from everlong.control import RETRIEVE, control_ids
from everlong.errors import BrokenFrameError, CapacityError, MemoryNotFoundError
from everlong.interrupts import interrupts_between_steps
from everlong.memory import Memory
from everlong.phase import PhaseTap
from everlong.prompt import start_ids
from everlong.transfer import PayloadTransfer

_LOGGER = logging.getLogger("everlong")

_STANDS = "frame"  # manifest attribute: where the frame stood at its last checkpoint
# File of the memory: what of the frame at that time is not in the archive, the anchor zone and the state of own layers.
_STATE = "frame.safetensors"
Zone = Literal["front", "rolling"]  # front: all before rolling


@dataclasses.dataclass(frozen=True)
class Recalled:
    """What is to come back: pages, first to last, the attention temperature of each, and which of them matter most."""

    pages: Sequence[_core.PageRef] = ()
    temperatures: Sequence[float] = ()  # empty: all 1
    best: Sequence[_core.PageRef] = ()  # those of the most relevant group; empty: the last one is


RecallPages = Callable[[_core.Recall], Recalled]
Actions = Sequence[_core.Archive | _core.Evict | _core.Recall]


@dataclasses.dataclass(frozen=True)
class _Asked:
    """What is left of the Memory OS's actions once all is archived and evicted."""

    actions: Sequence[_core.Recall]
    refusal: BaseException | None  # the first error of archiving


@dataclasses.dataclass(frozen=True)
class _Batch:
    """Pages on their way from the memory into the frame."""

    table: torch.Tensor  # int64 [pages, 6], as `ops.restore_kv` has it
    staged: _core.StagingBuffer
    reads: _core.PendingReads  # that fill it


class Frame:
    """One stream of one model over one memory. Not thread-safe.

    What `extend` gets is computed in chunks that fit, archived block by block and evicted as the Memory OS says. The
    Memory OS counts on all that it decides being done, so each step of a frame comes to its end: the first Ctrl-C waits
    for that, and a block that the memory refuses is left out of it while the rest is done. A step that does not come to
    its end all the same breaks the frame: every later call raises BrokenFrameError, and nothing of it is saved.
    """

    def __init__(self, served: ServedModel, memory: Memory, config: MemoryConfig, tokenizer: Any) -> None:
        require_budget(served, config)
        self.served = served
        self.memory = memory
        self.config = config
        self.os = _core.MemoryOs(config.os_config())
        if memory.core.read_only:
            self.os.set_archiving(False)
        self.cache = ResidentCache(
            served,
            frame_tokens=config.frame_tokens,
            sink_tokens=config.sink_tokens,
            front_tokens=config.sink_tokens + config.anchor_zone_tokens + config.recalled_zone_tokens,
        )
        largest_page = memory.core.page_bytes(config.page_tokens)
        self._transfer = PayloadTransfer(served.device, largest_page, self._block_bytes(config.block_tokens))
        self.source = ""
        self.tags: tuple[str, ...] = ()
        self.archived_blocks = 0
        self.on_archive: Callable[[], None] | None = None  # called after every block
        self._boundaries = TextBoundaries(tokenizer)
        self._start = torch.tensor(start_ids(tokenizer), dtype=torch.int64)
        self._retrieve_id = control_ids(tokenizer).get(RETRIEVE)
        self._last_id: int | None = None
        self._unarchived_ids: list[int] = []  # token ids of [os.archived_until, os.stream_end)
        # Inside a branch: what stood in a zone before its first change.
        self._saved: dict[Zone, SlotSnapshot] | None = None
        self._broken = False
        self._phase = PhaseTap(served)
        try:
            self._resume()
        except BaseException:
            self._phase.close()
            raise

    def close(self) -> None:
        """Archive what is not archived yet, note where the frame stands, and take the hook off the model.

        Of a broken frame nothing is kept but what was archived before.
        """
        try:
            if self._broken:
                _LOGGER.warning("the frame was broken by an error: what it had not archived is not in the memory")
            elif not self.memory.core.read_only:
                self.checkpoint()
        finally:
            self.detach()

    def detach(self) -> None:
        """Take the hook off the model, and no more."""
        self._phase.close()

    @property
    def text_begin(self) -> int:
        """Which token of the stream the first of the next text is."""
        return self.os.stream_end or len(self._start)

    @property
    def last_id(self) -> int | None:
        """The stream's newest token; None where there is none, or where it was forgotten before this frame began."""
        return self._last_id

    @property
    def broken(self) -> bool:
        """Whether a step was cut short, so that this frame is of no use any more."""
        return self._broken

    def require_whole(self) -> None:
        if self._broken:
            raise BrokenFrameError(
                "an earlier error cut a step of this frame short, and what it holds is not what it should be: make "
                "another MemoryModel over the memory; all that was archived is in it"
            )

    @contextlib.contextmanager
    def _step(self) -> Iterator[None]:
        """Around what has to be done whole; an exception out of it breaks the frame."""
        self.require_whole()
        with interrupts_between_steps():
            self._broken = True
            yield
            self._broken = False

    @property
    def bytes(self) -> FrameBytes:
        """What the frame takes on the device at most, while reading too."""
        return frame_bytes(self.served, self.config)

    def checkpoint(self) -> None:
        """Archive what is not archived yet, and note where the frame stands: a later process goes on from there."""
        self.end_of_text()
        os = self.os
        stands: dict[str, Any] = {
            "stream_end": os.stream_end,
            "rolling_from": os.rolling[0],
            "read_until": os.read_until,
            "next_position": os.next_position(),
            "anchor_zone": os.anchor_zone,
        }
        if self.cache.own or len(self.cache.anchors) > 0:
            state = safetensors.torch.save({**self.cache.own.tensors(), **self.cache.anchors.tensors()})
            self.memory.core.put_file(_STATE, state)
            stands["state_crc32"] = zlib.crc32(state)
        self.memory.core.set_attribute(_STANDS, json.dumps(stands))

    # --- computing

    @torch.no_grad()
    def extend(
        self,
        ids: torch.Tensor,
        origin: str,
        *,
        logits: bool = False,
        recall: RecallPages | None = None,
        chunk_tokens: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> torch.Tensor:
        """Put ids [n], n >= 1, at the end of the stream; return logits [1, V] of the last one, or [n, V] of all.

        An empty stream begins with what the tokenizer puts before every text; `ids` are without it.
        `recall` answers the RecallActions that the policy raises on the way; without it they are passed over.
        """
        self.require_whole()
        start = self._start if self.os.stream_end == 0 else self._start[:0]
        ids = torch.cat([start, ids])
        limit = chunk_tokens or self.config.chunk_tokens
        rows = []
        done = 0
        while done < len(ids):
            room = self.os.room()
            if room <= 0:
                raise CapacityError(f"the frame of {self.config.frame_tokens} tokens is full")
            chunk = ids[done : done + min(limit, room)]
            with self._step():
                rows.append(self._forward(chunk, keep_all=logits))
                self._unarchived_ids.extend(chunk.tolist())
                boundaries = self._boundaries_of(chunk, turn=origin == "prompt" and done == 0)
                asked = self._do(self.os.observe(len(chunk), origin, boundaries))
            done += len(chunk)
            self._bring(asked, recall)
            if origin == "generated" and self._last_id == self._retrieve_id:
                self.raise_signal("retrieve", recall)
            if progress is not None:
                progress(len(chunk))
        return torch.cat(rows)[len(start) :] if logits else rows[-1]

    def _boundaries_of(self, chunk: torch.Tensor, *, turn: bool) -> list[Boundary]:
        """Where blocks may end in this chunk; a prompt begins where a turn of the conversation ended."""
        before, self._last_id = self._last_id, int(chunk[-1])
        if not self.os.archiving:
            return []
        found = self._boundaries.find(chunk, before)
        return [(0, "turn"), *found] if turn else found

    def end_of_text(self) -> None:
        """Archive what is not archived yet, as a last block; then all that was archived is durable."""
        self._decide(lambda: self.os.end_of_text(), None)
        if not self.memory.core.read_only:
            self.memory.core.flush()

    def begin_prompt(self, recall: RecallPages | None) -> None:
        """A question is about to be read."""
        self._decide(lambda: self.os.begin_prompt(), recall)

    def raise_signal(self, signal: str, recall: RecallPages | None) -> None:
        """What a control token says."""
        self._decide(lambda: self.os.raise_signal(signal), recall)

    def _forward(self, chunk: torch.Tensor, *, keep_all: bool) -> torch.Tensor:
        end = self.cache.end
        try:
            return self._forward_at(self.os.next_position(), chunk, keep_all=keep_all)
        except BaseException:
            # What it wrote lies behind the newest slot. Only layers with a state of their own may have gone half-way.
            self._broken = bool(self.cache.own) or self.cache.end != end
            raise

    def _forward_at(self, position: int, chunk: torch.Tensor, *, keep_all: bool) -> torch.Tensor:
        """Put chunk [n] behind the newest slot, at frame positions position, position + 1 ..."""
        first = position + self.served.first_position
        device = self.served.device
        positions = torch.arange(first, first + len(chunk), device=device)[None]
        out = self.served.model(
            input_ids=chunk[None].to(device),
            position_ids=positions,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=0 if keep_all else 1,
        )
        self.cache.commit(*self._phase.newest)
        logits: torch.Tensor = out.logits[0]
        return logits

    # --- executing the Memory OS

    def execute(self, actions: Actions, recall: RecallPages | None) -> None:
        """Do what the Memory OS decided, in order; `recall` answers its RecallActions, None passes them over.

        What the memory refuses to archive is lost to it: the rest is done, then that error is raised.
        """
        self._decide(lambda: actions, recall)

    def _decide(self, decision: Callable[[], Actions], recall: RecallPages | None) -> None:
        """Have the Memory OS decide, and do it, as one step; what it asks back follows."""
        with self._step():
            asked = self._do(decision())
        self._bring(asked, recall)

    def _do(self, actions: Actions) -> _Asked:
        """Archive and evict, in order; what is asked back comes after that."""
        # Actions refer to the rolling zone as it lay before the evictions among them.
        rolling_begin = self.os.rolling[0] - sum(a.tokens for a in actions if isinstance(a, _core.Evict))
        asked: list[_core.Recall] = []
        refusal: BaseException | None = None
        for action in actions:
            if isinstance(action, _core.Archive):
                try:
                    self._archive(action, rolling_begin)
                except BaseException as error:
                    _LOGGER.warning("archiving tokens %d to %d failed: %r", action.begin, action.end, error)
                    refusal = refusal or error
            elif isinstance(action, _core.Evict):
                if action.keeps:
                    self._keep_anchors(action, rolling_begin)
                self._keep_before_change("rolling")
                self.cache.evict(action.tokens, action.delta)
                rolling_begin += action.tokens
            else:
                asked.append(action)
        kept = self.os.stream_end - self.os.archived_until if self.os.archiving else 0
        del self._unarchived_ids[: len(self._unarchived_ids) - kept]
        return _Asked(asked, refusal)

    def _bring(self, asked: _Asked, recall: RecallPages | None) -> None:
        """Answer RecallActions, or say why the step before them failed."""
        if asked.refusal is not None:
            raise asked.refusal
        if recall is not None:
            for action in asked.actions:
                recalled = recall(action)
                self.recall(recalled.pages, recalled.temperatures, recalled.best)

    def _archive(self, action: _core.Archive, rolling_begin: int) -> None:
        tokens = action.end - action.begin
        first_id = len(self._unarchived_ids) - (self.os.stream_end - action.begin)
        ids = np.asarray(self._unarchived_ids[first_id : first_id + tokens], dtype=np.int32)
        first_slot = self.cache.slot_of(action.begin, rolling_begin)

        def encode(out: torch.Tensor) -> None:
            self.cache.archive(first_slot, tokens, out, page_tokens=self.config.page_tokens, codec=self.config.codec)

        self.memory.core.append(
            stream=self.os.stream,
            begin=action.begin,
            end=action.end,
            sink_tokens=action.sink_tokens,
            source=self.source,
            created_at=round(time.time(), 6),  # as exactly as a datetime can say it, so that filters may name it
            tags=self.tags,
            token_ids=ids,
            payload=self._transfer.archive(self._block_bytes(tokens), encode),
        )
        self.archived_blocks += 1
        if self.on_archive is not None:
            self.on_archive()

    def _keep_anchors(self, action: _core.Evict, rolling_begin: int) -> None:
        """Take from what is about to leave what the anchor zone holds from now on."""
        cache = self.cache
        self._keep_before_change("front")
        anchors = cache.anchors
        for keep in action.keeps:
            k, v = cache.unrotated(cache.slot_of(keep.begin, rolling_begin), keep.end - keep.begin)
            if not keep.tombstone:
                anchors = anchors.with_anchor(k, v, dropped=keep.dropped)
                continue
            anchors = anchors.with_tombstone(k, v)
            if keep.merged >= 0:
                anchors = anchors.with_merged(keep.merged, keep.merged_tokens, keep.next_tokens)
        self._set_anchors(anchors, action.anchor_positions)

    def _set_anchors(self, anchors: AnchorMasters, positions: Sequence[int]) -> None:
        self.cache.set_anchors(anchors, [position + self.served.first_position for position in positions])

    def recall(
        self,
        pages: Sequence[_core.PageRef],
        temperatures: Sequence[float] = (),
        best: Sequence[_core.PageRef] = (),
    ) -> None:
        """Replace the recalled zone by these pages, first to last; where that fails, by nothing.

        Keys of a page with an attention temperature of its own are divided by it, for what is read from now on. Where
        one run of tokens is read again (`recall_mode` "auto"), it is the one with a page of `best`, else the last.
        """
        temperature = dict(zip(map(_identity, pages), temperatures, strict=True)) if temperatures else {}
        with self._step():
            placements = self.os.recall(pages)
            tokens = sum(p.tokens for p in placements)
            if not self.os.evicted:
                return
            self._keep_before_change("front")
            first_slot = self.cache.open_recalled(tokens)
            anew = self._read_anew(placements, best)
            first_anew = first_slot + sum(p.tokens for p in placements[: anew.start])
            behind = first_anew + sum(p.tokens for p in placements[anew])
            try:
                for restored, slot in ((placements[: anew.start], first_slot), (placements[anew.stop :], behind)):
                    self._restore(restored, slot)
                    self._cool(restored, slot, temperature)
                self._read_again(placements[anew], first_anew)
                self._cool(placements[anew], first_anew, temperature)
            except BaseException:
                self._empty_recalled()
                self._broken = False
                raise

    def _cool(
        self, placements: Sequence[_core.Placement], first_slot: int, temperature: dict[tuple[int, int], float]
    ) -> None:
        slot = first_slot
        for placement in placements:
            self.cache.cool(slot, placement.tokens, temperature.get(_identity(placement.page), 1))
            slot += placement.tokens

    def _read_anew(self, placements: Sequence[_core.Placement], best: Sequence[_core.PageRef]) -> slice:
        """Which of the placements are read again; the others are restored."""
        everything, nothing = slice(0, len(placements)), slice(len(placements), len(placements))
        if self.config.recall_mode != "auto":
            return everything if self.config.recall_mode == "text" else nothing
        breaks = [
            index for index, (one, next_) in enumerate(itertools.pairwise(placements), 1) if not _goes_on(one, next_)
        ]
        if not breaks:
            return nothing
        runs = [slice(*span) for span in itertools.pairwise([0, *breaks, len(placements)])]
        named = set(map(_identity, best))
        return next((run for run in runs if any(_identity(p.page) in named for p in placements[run])), runs[-1])

    @torch.no_grad()
    def _read_again(self, placements: Sequence[_core.Placement], first_slot: int) -> None:
        """Compute the KV of recalled tokens anew, behind what the frame holds before `first_slot`.

        Layers that are not archived begin with them: their state is of the newest text, which stands behind them. It is
        put back afterwards, and what was recalled leaves no mark on it.
        """
        if not placements:
            return
        core, cache = self.memory.core, self.cache
        spans = [(p.page.stream, p.page.begin + p.first_token, p.tokens) for p in placements]
        ids = np.concatenate([core.token_ids(stream, begin, begin + count) for stream, begin, count in spans])
        own, end, position = cache.own.snapshot(), cache.end, placements[0].position
        cache.own.empty()
        cache.end = first_slot
        try:
            for chunk in torch.split(torch.from_numpy(ids.astype(np.int64)), self.config.chunk_tokens):
                self._forward_at(position, chunk, keep_all=False)
                position += len(chunk)
        finally:
            cache.end = end
            cache.own.restore(own)

    def clear_recalled(self) -> None:
        with self._step():
            self._empty_recalled()

    def _empty_recalled(self) -> None:
        self.os.clear_recalled()
        if self.os.evicted:
            self._keep_before_change("front")
            self.cache.open_recalled(0)

    def _restore(self, placements: Sequence[_core.Placement], first_slot: int) -> None:
        """Read the placed pages from the memory and write them to consecutive slots: a batch while the next is read."""
        slot = first_slot
        being_read: _Batch | None = None
        for pages in self._batches(placements):
            next_batch = self._start_reading(pages, slot)
            slot += sum(p.tokens for p in pages)
            if being_read is not None:
                self._write(being_read)
            being_read = next_batch
        if being_read is not None:
            self._write(being_read)

    def _batches(self, placements: Sequence[_core.Placement]) -> Iterator[list[_core.Placement]]:
        batch: list[_core.Placement] = []
        size = 0
        for placement in placements:
            page_bytes = self._page_bytes(placement)
            if batch and size + page_bytes > self._transfer.batch_bytes:
                yield batch
                batch, size = [], 0
            batch.append(placement)
            size += page_bytes
        if batch:
            yield batch

    def _start_reading(self, placements: Sequence[_core.Placement], first_slot: int) -> _Batch:
        table = torch.zeros(len(placements), 6, dtype=torch.int64)
        offset, slot = 0, first_slot
        for row, placement in enumerate(placements):
            page_tokens = placement.page.end - placement.page.begin
            table[row] = torch.tensor(
                [
                    offset,
                    page_tokens,
                    placement.first_token,
                    placement.tokens,
                    slot,
                    placement.position + self.served.first_position,
                ]
            )
            offset += self._page_bytes(placement)
            slot += placement.tokens
        staged = self._transfer.stage(offset)
        pages = [p.page for p in placements]
        reads = self.memory.core.start_read_pages(pages, 0, self.served.layers, staged.array)
        return _Batch(table, staged, reads)

    def _write(self, batch: _Batch) -> None:
        batch.reads.wait()
        payload = self._transfer.to_device(batch.staged)
        self.cache.write_pages(payload, batch.table, page_tokens=self.config.page_tokens, codec=self.config.codec)

    def _block_bytes(self, tokens: int) -> int:
        full, rest = divmod(tokens, self.config.page_tokens)
        page_bytes = self.memory.core.page_bytes
        return full * page_bytes(self.config.page_tokens) + (page_bytes(rest) if rest else 0)

    def _page_bytes(self, placement: _core.Placement) -> int:
        return self.memory.core.page_bytes(placement.page.end - placement.page.begin)

    def _resume(self) -> None:
        """Go on where the archived stream ends: sinks and the newest tokens come back into the frame."""
        core, stream = self.memory.core, self.os.stream
        end = core.stream_end(stream)
        if end == 0:
            return
        stands: dict[str, Any] = json.loads(core.manifest().attributes.get(_STANDS, "{}"))
        state = self._load_state(stands)
        # What stood in the anchor zone is still true when blocks were archived since; what rolled is not.
        anchor_zone = stands.get("anchor_zone")
        if anchor_zone is not None and state is None and (anchor_zone["anchors"] or anchor_zone["tombstones"]):
            anchor_zone = None  # their keys and values are gone; topics that are still to leave have none yet
        if stands.get("stream_end") != end:
            stands = {}
        pages = [page for page in core.pages() if page.stream == stream]
        placements = self.os.resume(end, pages, stands.get("rolling_from"), stands.get("read_until"), anchor_zone)
        sinks = self.os.sinks
        self.cache.begin = self.cache.rolling_slot - sinks
        self.cache.end = self.cache.begin + sum(p.tokens for p in placements)
        self._restore(placements, self.cache.begin)
        if self.cache.own:
            if state is not None and stands:
                self.cache.own.load(state, self.served.device, self.served.dtype)
                self.cache.own.turn(self.os.next_position() - stands["next_position"])
            else:
                self._reread()
                self._restore(placements, self.cache.begin)
        if state is not None and self.os.anchor_positions:
            self._set_anchors(self.cache.anchors.loaded(state), self.os.anchor_positions)
        with contextlib.suppress(MemoryNotFoundError):  # it may have been forgotten
            self._last_id = int(core.token_ids(stream, end - 1, end)[0])

    def _load_state(self, stands: dict[str, Any]) -> dict[str, torch.Tensor] | None:
        """What a checkpoint kept beside the archive; None when there is none, or not whole."""
        state = self.memory.core.file(_STATE) if "state_crc32" in stands else None
        if state is None or zlib.crc32(state) != stands["state_crc32"]:
            return None
        return safetensors.torch.load(state)

    @torch.no_grad()
    def _reread(self) -> None:
        """Read the tokens in the frame again, for the state of the layers that are not archived.

        That state is exact when nothing has left the frame, else what these layers make of the tokens that stayed.
        """
        cache, first = self.cache, self.os.rolling[0] if self.os.evicted else 0
        end = self.os.stream_end
        if first == end:
            return
        ids = torch.from_numpy(self.memory.core.token_ids(self.os.stream, first, end).astype(np.int64))
        position = self.os.next_position() - len(ids)
        cache.end -= len(ids)
        for chunk in torch.split(ids, self.config.chunk_tokens):
            self._forward_at(position, chunk, keep_all=False)
            position += len(chunk)

    # --- leaving no trace

    @contextlib.contextmanager
    def branch(self) -> Iterator[None]:
        """Inside, nothing is archived; afterwards frame and Memory OS are what they were. Branches nest.

        A frame that broke inside is whole again.
        """
        self.require_whole()
        saved_os, outer = self.os, self._saved
        layout = self.cache.layout()
        ids, last_id = list(self._unarchived_ids), self._last_id
        own = self.cache.own.snapshot()
        changed: dict[Zone, SlotSnapshot] = {}
        try:
            self._saved = changed
            self.os = saved_os.copy()
            self.os.set_archiving(False)
            yield
        finally:
            self._broken = False
            with self._step():
                for snapshot in changed.values():
                    self.cache.restore(snapshot)
                self.cache.own.restore(own)
                self.os, self._saved = saved_os, outer
                self.cache.put_back(layout)
                self._unarchived_ids, self._last_id = ids, last_id

    def _keep_before_change(self, zone: Zone) -> None:
        if self._saved is None or zone in self._saved:
            return
        cache = self.cache
        if zone == "rolling":
            self._saved[zone] = cache.snapshot(cache.rolling_slot, cache.rolling_slots)
        else:
            self._saved[zone] = cache.snapshot(cache.begin, cache.rolling_slot - cache.begin)


def _identity(page: _core.PageRef) -> tuple[int, int]:
    return page.block, page.page


def _goes_on(first: _core.Placement, second: _core.Placement) -> bool:
    """Whether the second run of tokens goes on where the first one ends in the text."""
    end = first.page.begin + first.first_token + first.tokens
    return first.page.stream == second.page.stream and second.page.begin + second.first_token == end
