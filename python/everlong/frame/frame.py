"""A stream before a model: it runs the model and executes what the Memory OS decides. It decides nothing.

It takes and gives tensors alone: token ids or soft tokens in, logits and hidden states out. What is resident stands in
its zones (zones.py): keys and values that are archived and restored (kv_frame.py), or text alone, which is read again
(text_frame.py).
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import torch

import everlong._core as _core
from everlong.config import MemoryConfig
from everlong.errors import CapacityError, EverlongError, MemoryNotFoundError
from everlong.frame.archive import FrameArchive
from everlong.frame.checkpoint import Checkpoint, keep_checkpoint, load_checkpoint
from everlong.frame.checkpointing import Checkpointer
from everlong.frame.chunk_observer import ChunkObserver
from everlong.frame.executor import Actions, Executor, Recalls
from everlong.frame.forgotten import is_still_stored
from everlong.frame.observers import Observation, OnBlock
from everlong.frame.offers import Offers, offers_of
from everlong.frame.part import Offer
from everlong.frame.parts import Parts, needs_of
from everlong.frame.read_request import Computed, Forward, Origin, ReadRequest
from everlong.frame.stream import Stream
from everlong.frame.taps import HiddenRows
from everlong.frame.zones import PreparedRecall, Zones
from everlong.kv_cache.steps import plain_tensors, run_to_end
from everlong.kv_cache.visible_spans import VisibleSpans
from everlong.memory.where import Where
from everlong.models.model_interface import ModelInterface
from everlong.models.tokenizer_check import embedding_rows, require_known
from everlong.models.tokens import Tokens
from everlong.text.control import RETRIEVE, control_ids
from everlong.text.prompt import soft_id, start_ids

_LOGGER = logging.getLogger("everlong")
_PLACED = object()


class Frame:
    """One stream of one model over one memory. Not thread-safe.

    What `extend` gets is computed in chunks that fit. It is archived block by block and evicted as the Memory OS says.
    The Memory OS counts on all that it decides being done, so a step of a frame always runs to its end. The first
    Ctrl-C waits for that. A block that the memory refuses is left out, and the rest is done. A step that fails all the
    same breaks the frame: every later call raises BrokenFrameError, and nothing of the frame is saved.
    """

    served: ModelInterface

    def __init__(self, stream: Stream, zones: Zones, tokenizer: Any, *, resume: bool = True) -> None:
        """Go on where the memory's stream ends: sinks and the newest tokens come back into the zones.

        Without `resume` the zones hold them already.
        """
        self.stream, self.zones, self.steps = stream, zones, stream.steps
        self.memory = stream.memory
        self.archive = FrameArchive(stream, zones)
        self.executor = Executor(stream, zones, self.archive)
        self._notes = Checkpointer(stream, zones, self.archive)
        self._observer = ChunkObserver(self.served, stream, zones, self.archive.observers, tokenizer)
        self._start = torch.tensor(start_ids(tokenizer), dtype=torch.int64, device="cpu")
        self._retrieve_id = control_ids(tokenizer).get(RETRIEVE)
        self._soft_id = soft_id(tokenizer)
        self._rows = embedding_rows(self.served.model)
        try:
            if resume:
                self._resume()
        except BaseException:
            zones.detach()
            raise

    @property
    def os(self) -> _core.MemoryOs:
        """What decides over the frame; in a branch, the branch's own."""
        return self.stream.os

    @property
    def config(self) -> MemoryConfig:
        """The settings in use."""
        return self.stream.config

    @property
    def parts(self) -> Parts:
        """The parts at work."""
        return self.stream.parts

    # --- life

    def detach(self) -> None:
        """Take the frame's hooks off the model, and end the threads of blocks and observers. Archive nothing."""
        self.zones.detach()
        self.archive.close()

    def close(self) -> None:
        """Archive what is not archived yet, note where the frame stands, and take its hooks off the model.

        Of a broken frame nothing is kept but what was archived before. In a fork of the process, and where the memory's
        folder is gone, nothing is kept.
        """
        try:
            if not self.steps.of_this_process:
                return
            if self.steps.broken:
                self.archive.flush()
                _LOGGER.warning("the frame was broken by an error: what it had not archived is not in the memory")
            elif not self.memory.core.read_only and not self.memory.is_gone:
                self.end_of_text()
                # Where nothing was added the old note stays: this config may have brought back less of what it names.
                if not self._notes.up_to_date:
                    self._notes.checkpoint()
                else:  # parts learn from questions, too
                    self.parts.store_state(self.memory.core)
        finally:
            self.detach()

    @property
    def can_checkpoint(self) -> bool:
        """Whether the memory takes what is not archived yet, and where the frame stands."""
        mine = self.steps.of_this_process and not self.steps.broken
        return mine and self.os.archiving and not self.memory.core.read_only

    @property
    def text_begin(self) -> int:
        """Which token of the stream the next text begins with."""
        return self.os.stream_end or len(self._start)

    def checkpoint(self) -> None:
        """Archive what is not archived yet, and note where the frame stands. A later process goes on from there."""
        self.end_of_text()
        self._notes.checkpoint()

    def drop_forgotten(self) -> bool:
        """Let go of what was forgotten since the frame last looked. Return whether anything was.

        Where it held any of that, it goes on as one that is opened now: with what is there. Call it between two texts
        or questions.
        """
        core = self.memory.core
        if core.forgettings() == self.stream.forgettings:
            return False
        core.upkeep.hear_forgettings()
        forgettings = core.forgettings()
        if is_still_stored(self.stream, self.zones.own_from):
            self.stream.forgettings = forgettings
            return True
        if self.can_checkpoint:
            self.checkpoint()
        try:
            with plain_tensors():
                self.zones.begin_anew()
                self.stream.begin_anew()
                self._resume()
        except BaseException:
            self.steps.broken = True
            raise
        return True

    def _resume(self) -> None:
        """Go on where the archived stream ends: bring sinks and the newest tokens back into the frame."""
        core, stream = self.memory.core, self.os.stream
        self._observer.require_readable()  # layers that cannot be read are refused now
        self.parts.load_state(core)
        self.stream.forgettings = core.forgettings()
        end = core.blocks.stream_end(stream)
        last = load_checkpoint(core)
        # The checkpoint's newest text was forgotten: it must go, before other text gets those places.
        outdated = last.stream_end is not None and last.stream_end > end and not core.read_only
        if end == 0:
            if outdated:
                keep_checkpoint(core, Checkpoint(forgettings=self.stream.forgettings))
            if self.os.stream_end > 0:  # all of it was forgotten
                self.zones.come_back(0, Checkpoint(), None)
            return
        behind = self._notes.ids_behind(last, end, self._start)
        stood = end - len(behind)
        archived_until = end if len(behind) > 0 else None
        if stood > 0:
            self.zones.come_back(stood, last.still_true(stood), archived_until)
        else:
            self.stream.resume(0, last, archived_until)
        self._notes.resume(stood, noted=False)
        if len(behind) > 0:
            started = time.monotonic()
            _LOGGER.warning(
                "reading %d tokens again: their process died, and the frame's state after them is lost", len(behind)
            )
            self.extend(behind if stood > 0 else behind[len(self._start) :], "read")
            self._observer.end_text()
            self._decide(lambda: self.os.end_of_text())
            _LOGGER.info("read them again in %.1f s", time.monotonic() - started)
        if outdated:
            self._notes.checkpoint()
        elif last.stream_end == end:
            self._notes.resume(stood, noted=True)
        with contextlib.suppress(MemoryNotFoundError):  # it may have been forgotten
            self.stream.last_id = int(core.blocks.token_ids(stream, end - 1, end)[0])

    # --- reading

    def extend(
        self,
        ids: torch.Tensor,
        origin: Origin,
        *,
        logits: bool = False,
        chunk_tokens: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> torch.Tensor:
        """Put ids [n] in, and recall nothing. Return logits alone: [1, V] of the last, or with `logits` [n, V]."""
        request = ReadRequest(ids, origin, keep_all=logits, chunk_tokens=chunk_tokens, progress=progress)
        return self.forward(request).logits

    @torch.no_grad()
    def forward_in_steps(self, request: ReadRequest) -> Generator[None, None, Forward]:
        """Put tokens at the end of the stream. Return what was computed, and what is to be recalled.

        It yields between two chunks: other frames of the model may compute then. Whoever closes it there leaves the
        frame whole, with the chunks that were computed.

        Soft tokens are computed, archived and evicted like others, in the model's dtype. An empty stream begins with
        what the tokenizer puts before every text. `ids` come without it, except a prompt from a chat template that the
        caller rendered. Where text is read (`origin` "read") without `keep_all`, logits may be empty. A frame of text
        alone computes for `hidden_layers` what it would otherwise only note. CapacityError where the frame is full.
        """
        self.steps.require_whole()
        origin, keep_all, hidden_layers = request.origin, request.keep_all, request.hidden_layers
        given = _tokens_of(request.ids, request.inputs_embeds, self._soft_id)
        if given.embeds is None and origin != "generated":
            require_known(self._rows, given.ids)
        brought = origin == "prompt" and torch.equal(given.ids[: len(self._start)], self._start)
        start = self._start if self.os.stream_end == 0 and not brought else self._start[:0]
        # Ids are read in one run with what stands before them. Soft tokens follow in a run of their own.
        runs = [Tokens(torch.cat([start, given.ids]))] if given.embeds is None else [Tokens(start), given]
        rows: list[torch.Tensor] = []
        kept = HiddenRows()
        begun, left = False, sum(map(len, runs))
        recalls: Recalls = ()
        for chunk in self._chunks(runs, request.chunk_tokens or self.config.frame.chunk_tokens):
            left -= len(chunk)
            if not keep_all:
                rows.clear()  # a text that is read has many chunks
            with request.tap():
                found = self._put(chunk, request, begins=not begun, ends=left == 0)
            rows.append(found.logits)
            kept = kept.added(len(chunk), found.hidden, hidden_layers)
            recalls = found.recalls
            begun = True
            if request.progress is not None:
                request.progress(len(chunk))
            if left > 0:
                yield
        logits = torch.cat(rows)[len(start) :] if keep_all else rows[-1]
        return Forward(logits, kept.span(len(given), len(given)), recalls)

    forward = run_to_end(forward_in_steps)

    def _chunks(self, runs: Sequence[Tokens], limit: int) -> Iterator[Tokens]:
        """Yield the runs in chunks that fit. Each must be in the frame when the next is asked for."""
        for run in runs:
            done = 0
            while done < len(run):
                room = self.os.room()
                if room <= 0:
                    raise CapacityError(f"the frame of {self.config.frame.tokens} tokens is full")
                chunk = run[done : done + min(limit, room)]
                done += len(chunk)
                yield chunk

    def _put(self, chunk: Tokens, request: ReadRequest, *, begins: bool, ends: bool) -> Forward:
        """Compute a chunk, and do what is decided on it except recalls."""
        self.steps.require_wanted()
        origin = request.origin
        # While a text is read nobody asks for its newest block. So the next chunk is computed while it is stored.
        beside = origin == "read" and self.zones.stores_beside and self.config.frame.kept_tokens == 0
        # The last row is needed for a prompt, and for each token that is generated.
        needed = request.keep_all or (origin != "read" and ends)
        heeded = origin == "generated" and request.recall
        with self.steps.step():
            topics_by = self.parts.segmenter if origin == "read" and self.os.archiving else None
            asks = self.parts.tombstone_scorer if heeded else None
            heard = (*request.hidden_layers, *needs_of(topics_by).hidden_layers, *needs_of(asks).hidden_layers)
            with self._adapted(origin), self.zones.heeding_tombstones(heeded) as attended:
                computed = self._observer.compute(
                    chunk, heard, keep_all=request.keep_all, needed=needed, precomputed=request.precomputed
                )
            hidden = computed.hidden
            self.stream.added(chunk.ids, hidden, self._observer.layers)
            boundaries = self._observer.boundaries(chunk.ids, turn=origin == "prompt" and begins)
            topics = self._observer.topic_ends(topics_by, chunk.ids, hidden)
            actions = self.os.observe(len(chunk), origin, boundaries, topics, attended(hidden))
            pending = self.executor.do(actions, beside=beside and not ends)
        recalls = pending.recalls()
        if not request.recall:
            recalls = ()
            self.finish_token(origin)
        return Forward(computed.logits, hidden, recalls)

    def finish_token(self, origin: Origin = "generated") -> Recalls:
        """Do what follows a token once its recalls are carried out. Return what it asks for as a control token.

        `forward` does it by itself where nothing is to be recalled.
        """
        self._notes.checkpoint_while_reading()
        asks = origin == "generated" and self.stream.last_id == self._retrieve_id
        return self.raise_signal("retrieve") if asks else ()

    def compute_ahead(self, ids: torch.Tensor, *, recall: bool) -> Computed | None:
        """Compute generated tokens [n] of which only the first is chosen already, and put none of them in.

        `forward` takes a row of it as `precomputed`, token after token, as long as these are the tokens that follow.
        `recall` as it is for them. None where it is of no use: they are computed one by one.
        """
        self.steps.require_wanted()
        if recall and self.parts.tombstone_scorer is not None:
            return None  # a part that reads each token's attention listens to one forward a token
        with self.steps.step():
            ids = ids[: self.zones.room_ahead()]
            if len(ids) < 2:
                return None
            with self._adapted("generated"):
                return self._observer.compute_ahead(Tokens(ids))

    def _adapted(self, origin: Origin) -> contextlib.AbstractContextManager[None]:
        """Return what parts attach to the model for what came back, where something did."""
        read_from = origin != "read" and self.os.recalled_tokens > 0
        return self.parts.adapted(self) if read_from else contextlib.nullcontext()

    def end_of_text(self) -> None:
        """Archive what is not archived yet, as a last block. Then all that was archived is durable."""
        self._observer.end_text()
        self._decide(lambda: self.os.end_of_text())
        if not self.memory.core.read_only:
            self.memory.core.upkeep.flush()

    def observe(self, on_block: OnBlock, *, hidden_layers: Sequence[int] = (), background: bool = False) -> Observation:
        """Call `on_block` for every block that is archived from now on, until the result is closed.

        It gets hidden states of `hidden_layers` (counted as `HiddenTap` does), which the frame keeps until a block is
        archived. Tokens that were in the frame before have none. See `Observers` for order, threads and errors.
        """
        self._observer.require_readable(hidden_layers)  # layers that cannot be read are refused now
        return self.archive.observers.add(on_block, hidden_layers, background=background)

    # --- asking

    def begin_prompt(self) -> Recalls:
        """Tell the Memory OS that a question is about to be read. Return what it asks for."""
        return self._decide(lambda: self.os.begin_prompt())

    def narrow(self, where: Where) -> None:
        """Hide from what follows in this branch all of the stream that does not pass `where`. Empty the recalled zone.

        No token attends to it from now on: as if it stood nowhere in the frame. What passes keeps its place. It was
        computed over what stood before it, and stays as it was computed, except where a layer has a state of its own
        (KvZones.narrow). Tokens in no block pass no filter. EverlongError outside of a branch, which is to undo it.
        """
        if not where.chooses:
            return
        if self.stream.branched_at is None:
            raise EverlongError("narrow: only inside `with frame.branch():`, which shows everything again at its end")
        end = self.os.stream_end
        passing = [one for one in where.blocks(self.memory.core) if one.stream == self.os.stream]
        visible = VisibleSpans.of([(one.begin, one.end) for one in passing if self.stream.is_at(one.id)], end)
        with self.steps.step():
            if self.os.recalled_tokens > 0:
                self._empty_recalled()
            if not visible.whole(0, end):
                self.stream.visible = visible
                self.zones.narrow()

    def raise_signal(self, signal: str) -> Recalls:
        """Tell the Memory OS what a control token says. Return what it asks for."""
        return self._decide(lambda: self.os.raise_signal(signal))

    def _decide(self, decision: Callable[[], Actions]) -> Recalls:
        """Have the Memory OS decide, and do all but recalls in order, as one step. Return the recalls.

        What the memory refuses to archive is lost to it. The rest is done, then that error is raised.
        """
        with self.steps.step():
            pending = self.executor.do(decision())
        return pending.recalls()

    def recall(
        self,
        pages: Sequence[_core.PageRef],
        temperatures: Sequence[float] = (),
        best: Sequence[_core.PageRef] = (),
    ) -> None:
        """Replace the recalled zone by these pages, first to last. Where that fails the zone is empty.

        For the question under way, what left the conversation's window stands before them (MemoryOs.conversation). The
        keys of a page are divided by its attention temperature, for what is read from now on. `answer.recall_mode`
        "auto" reads one run of tokens again: the one with a page of `best`, else the last.
        """
        self.bring_back(offers_of(pages, "named", temperatures, best))

    def bring_back_in_steps(self, offers: Offers) -> Generator[None]:
        """Do as `recall`, for all that is offered. Blocks that come as Detail Tokens stand before the pages.

        With `answer.recall_mode` "detail" a block that has Detail Tokens never comes as pages. Where no block is named,
        the named pages' blocks come as Detail Tokens.

        It yields between two chunks of what is read again. Whoever closes it there leaves the zone empty. What another
        thread forgot since it was found is left out. Of named pages that is MemoryNotFoundError, with an empty zone.
        """
        try:
            yield from self._bringing_back(offers)
        except MemoryNotFoundError:
            there = [one for one in offers if "named" in one.found_by or self._has(one)]
            if len(there) == len(offers):
                raise
            yield from self.bring_back_in_steps(there)

    def _has(self, offer: Offer) -> bool:
        """Return whether the memory has all pages of an offer still."""
        try:
            for block in {page.block for page in (offer.page, *offer.pages)}:
                self.memory.core.blocks.info(block)
        except MemoryNotFoundError:
            return False
        return True

    def _bringing_back(self, offers: Offers) -> Generator[None]:
        placing: Generator[None] | None = None
        placed = False
        try:
            while not placed:
                with self.steps.step():
                    if placing is None:
                        prepared = self.zones.prepare(offers)
                        placements = self.os.recall(prepared.offers(self.stream.conversation()))
                        if not self.os.evicted:
                            return
                        # What reads Detail Tokens was trained beside the parts that help to answer.
                        soft = any(placement.details for placement in placements)
                        placing = self.zones.place_in_steps(placements, prepared)
                    with self.parts.adapted(self) if soft else contextlib.nullcontext():
                        placed = next(placing, _PLACED) is _PLACED
                if not placed:
                    with self.steps.paused():
                        yield
        except BaseException as error:
            if not placed and (placing is not None or isinstance(error, MemoryNotFoundError)):
                self.steps.broken = False
                with self.steps.step():
                    if placing is not None:
                        placing.close()
                    self._empty_recalled()
            raise

    bring_back = run_to_end(bring_back_in_steps)

    def clear_recalled(self) -> None:
        """Empty the recalled zone. Errors as `Steps.require_whole` raises them."""
        with self.steps.step():
            self._empty_recalled()

    def _empty_recalled(self) -> None:
        self.os.clear_recalled()
        if self.os.evicted:
            self.zones.place([], PreparedRecall())

    @contextlib.contextmanager
    def branch(self, *, traced: bool = True) -> Iterator[None]:
        """Archive nothing inside. Afterwards frame and Memory OS are what they were. Branches nest.

        What was decided inside stays in the Memory OS's trace, marked, unless `traced` is False. A frame that broke
        inside is whole again.
        """
        self.steps.require_whole()
        with plain_tensors():
            put_back = self.zones.remember()
        go_back = self.stream.branch()
        try:
            yield
        finally:
            if self.steps.of_this_process:
                self.steps.broken = False
                with self.steps.step():
                    put_back()
                    branched = go_back()
                    if traced:
                        self.os.take_trace(branched)


def _tokens_of(ids: torch.Tensor | None, embeds: torch.Tensor | None, soft: int) -> Tokens:
    if ids is None:
        if embeds is None:
            raise ValueError("neither ids nor inputs_embeds are given")
        ids = torch.full((len(embeds),), soft, dtype=torch.int64, device="cpu")
    return Tokens(ids, embeds)
