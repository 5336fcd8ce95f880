"""A stream before a model: it runs the model and executes what the Memory OS decides. It decides nothing.

It takes and gives tensors alone: token ids or soft tokens in, logits and hidden states out. Subclasses hold what is
resident: keys and values that are archived and restored (kv_frame.py), or text alone, which is read again
(text_frame.py).
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import everlong._core as _core
from everlong.config import MemoryConfig
from everlong.errors import BrokenFrameError, CapacityError, DeviceMemoryError, MemoryBusyError, MemoryNotFoundError
from everlong.frame.budget import FrameBytes
from everlong.frame.checkpoint import Checkpoint, KvState, keep_checkpoint, load_checkpoint
from everlong.frame.details import SoftBlock
from everlong.frame.interrupts import interrupts_between_steps
from everlong.frame.kept_payload import KeptPayload, chosen_in
from everlong.frame.observers import Observation, Observers, OnBlock
from everlong.frame.part import Hidden
from everlong.frame.parts import Parts, needs_of
from everlong.frame.taps import HiddenRows, HiddenTap
from everlong.frame.transfer import Archived
from everlong.frame.writing import BlocksOnTheirWay
from everlong.memory import Memory
from everlong.models.served import Served
from everlong.models.tokens import Tokens
from everlong.text.boundaries import Boundary, TextBoundaries
from everlong.text.control import RETRIEVE, control_ids
from everlong.text.prompt import soft_id, start_ids

_LOGGER = logging.getLogger("everlong")


@dataclasses.dataclass(frozen=True)
class Recalled:
    """What is to come back: pages, first to last, their attention temperatures, and which of them matter most."""

    pages: Sequence[_core.PageRef] = ()
    temperatures: Sequence[float] = ()  # empty: all 1
    best: Sequence[_core.PageRef] = ()  # pages of the most relevant group; empty: the last group
    # Blocks that come as Detail Tokens before the pages, first to last, where the frame has details.
    blocks: Sequence[int] = ()


# Interval, in tokens, at which a frame saves what is in no archive while it reads a text. After a process died, the
# next one reads at most twice as many tokens again.
CHECKPOINT_TOKENS = 8192

_NO_TOPICS = np.zeros(0, dtype=np.float32)

# The most blocks of a conversation, questions and answers, that are looked up.
_MOST_TURNS = 64


@dataclasses.dataclass(frozen=True)
class Forward:
    """What the model computed for the tokens that were put into a frame."""

    logits: torch.Tensor  # [1, V] of the last token, or [n, V] of all
    hidden: Mapping[int, torch.Tensor]  # by layer, [n, hidden size] of every token; only the layers that were asked for


RecallPages = Callable[[_core.Recall], Recalled]
Actions = Sequence[_core.Archive | _core.Trim | _core.Evict | _core.Recall]
Page = tuple[int, int]  # block, and its page


@dataclasses.dataclass(frozen=True)
class _Asked:
    """What is left of the Memory OS's actions once all is archived and evicted."""

    actions: Sequence[_core.Recall]
    refusal: BaseException | None  # the first error of archiving


@dataclasses.dataclass(frozen=True)
class _Progress:
    """What a checkpoint holds; a new one is due when any of it has changed."""

    stream_end: int
    archived_until: int
    read_until: int
    recall_counts: object
    cooldown_until: int
    kept: object  # a question alone may move the kept tokens


@contextlib.contextmanager
def _plain_tensors() -> Iterator[None]:
    """Context manager: its tensors have no gradients and can be written to later, in inference mode and out of it."""
    with torch.inference_mode(False), torch.no_grad():
        yield


class Frame(abc.ABC):
    """One stream of one model over one memory. Not thread-safe.

    What `extend` gets is computed in chunks that fit. It is archived block by block and evicted as the Memory OS says.
    The Memory OS counts on all that it decides being done, so a step of a frame always runs to its end. The first
    Ctrl-C waits for that. A block that the memory refuses is left out, and the rest is done. A step that fails all the
    same breaks the frame: every later call raises BrokenFrameError, and nothing of the frame is saved.
    """

    served: Served

    def __init__(
        self,
        memory: Memory,
        config: MemoryConfig,
        tokenizer: Any,
        parts: Parts | None = None,
    ) -> None:
        """Take the parts at work as `parts`. A subclass calls `_resume` once it can take what comes back."""
        self.memory = memory
        self.config = config
        self.parts = parts or Parts()
        self.os = _core.MemoryOs(self.parts.configure(config.os_config()))
        self._topics_until: int | None = None  # up to where topics of the text being read were scored
        if memory.core.read_only:
            self.os.stop_archiving()
        self.source = ""
        self.tags: tuple[str, ...] = ()
        self.tagger: Callable[[torch.Tensor], tuple[str, ...]] | None = None  # more tags for a block, by its ids [n]
        self.archived_at: float | None = None  # time of the next blocks, in seconds since 1970; None: now
        self.archived_blocks = 0
        self.observers = Observers()
        self._boundaries = TextBoundaries(tokenizer)
        self._start = torch.tensor(start_ids(tokenizer), dtype=torch.int64, device="cpu")
        self._retrieve_id = control_ids(tokenizer).get(RETRIEVE)
        self._soft_id = soft_id(tokenizer)
        self._last_id: int | None = None
        self._noted: _Progress | None = None  # what the memory's checkpoint holds
        self._due: Checkpoint | None = None  # kept once the archive has come as far
        self._due_after = CHECKPOINT_TOKENS  # where the stream stood for `_due`; else the earliest place of the next
        self._unarchived_ids: list[int] = []  # token ids of [os.open_from, os.stream_end)
        # Their hidden states, of the layers that are read; layers that tombstones are made from cover all of rolling.
        self._unarchived_hidden = HiddenRows()
        self.branched_at: int | None = None  # inside `branch`: where the stream stood before
        self._on_their_way = BlocksOnTheirWay()  # empty but between two chunks of a text
        self._broken = False
        self._in_step = False

    # --- what is resident

    @property
    @abc.abstractmethod
    def resident_tokens(self) -> int:
        """How many tokens the next token attends to."""

    @property
    @abc.abstractmethod
    def bytes(self) -> FrameBytes:
        """The most that the frame takes on the device, also while reading."""

    @abc.abstractmethod
    def _compute(self, chunk: Tokens, *, keep_all: bool, needed: bool) -> torch.Tensor:
        """Put chunk [n] behind the newest token. Return logits [1, V] of the last token, or [n, V].

        The logits may be anything where they are not `needed`. A failure leaves no token of the chunk behind, or breaks
        the frame.
        """

    @property
    def _stores_beside(self) -> bool:
        """Whether it is cheaper to store a block while something else is computed."""
        return False

    @abc.abstractmethod
    def _payload(self, action: _core.Archive, rolling_begin: int) -> Callable[[], Archived]:
        """Take a snapshot of a span. Return a call that waits for the bytes to archive.

        `rolling_begin` is the token of the stream where the rolling zone starts. Any thread may call the result, once.
        """

    @abc.abstractmethod
    def _evict(self, action: _core.Evict, rolling_begin: int) -> None:
        """Drop rolling's oldest tokens, and keep what is to stay of them."""

    def _chosen(self, action: _core.Trim, rolling_begin: int) -> list[int]:
        """Return the best of a closed block's tokens, the best first. A frame that keeps none is never asked."""
        raise NotImplementedError

    def _chosen_tensors(
        self, action: _core.Archive, chosen: Sequence[int], rolling_begin: int
    ) -> Mapping[str, npt.NDArray[Any]]:
        """Return what is stored with a block of the tokens that were chosen in it."""
        return {}

    def _kept_payloads(self, pages: Sequence[_core.PageRef]) -> Mapping[int, KeptPayload]:
        """Return kept payloads by block, for the blocks of these pages that come back as their chosen tokens alone."""
        return {}

    def _as_details(self, recalled: Recalled) -> tuple[Sequence[_core.PageRef], Mapping[int, SoftBlock]]:
        """Return the pages that come back as they are, and the blocks that come as Detail Tokens, first to last."""
        return recalled.pages, {}

    @abc.abstractmethod
    def _place(
        self,
        placements: Sequence[_core.Placement],
        temperature: Mapping[Page, float],
        best: Sequence[_core.PageRef],
        kept: Mapping[int, KeptPayload],
        soft: Mapping[int, SoftBlock],
    ) -> None:
        """Fill the recalled zone. Without placements, empty it.

        `kept` as `_kept_payloads` returns it, `soft` as `_as_details` does.
        """

    @abc.abstractmethod
    def _come_back(self, stream_end: int, last: Checkpoint, archived_until: int | None) -> None:
        """Bring sinks and the newest tokens of an archived stream back, in a new process.

        `last` is what of the last checkpoint holds for this stream. The tokens between `stream_end` and
        `archived_until` are about to be read again.
        """

    @abc.abstractmethod
    def _remember(self) -> Callable[[], None]:
        """Keep what is resident now. Return a call that puts it back, to be called once."""

    @property
    def _keeps_state(self) -> bool:
        """Whether the frame holds what is in no archive: layers with own state, an anchor zone, kept tokens."""
        return False

    def _is_whole(self, last: Checkpoint) -> bool:
        """Return whether the checkpoint has all that a frame held after reading something."""
        return True

    def _state(self) -> KvState | None:
        """Return a copy, for a checkpoint, of what is in no archive."""
        return None

    @abc.abstractmethod
    def _detach(self) -> None:
        """Take the frame's hooks off the model."""

    def detach(self) -> None:
        """Take the frame's hooks off the model, and end the threads of blocks and observers. Archive nothing."""
        self._detach()
        self._on_their_way.close()
        self.observers.close()

    # --- life

    def close(self) -> None:
        """Archive what is not archived yet, note where the frame stands, and take its hooks off the model.

        Of a broken frame nothing is kept but what was archived before.
        """
        try:
            if self._broken:
                self._let_arrive()
                _LOGGER.warning("the frame was broken by an error: what it had not archived is not in the memory")
            elif not self.memory.core.read_only:
                self.end_of_text()
                # Where nothing was added the old note stays: this config may have brought back less of what it names.
                if self._progress() != self._noted:
                    self._note()
                else:  # parts learn from questions, too
                    self.parts.keep_state(self.memory.core)
        finally:
            self.detach()

    @property
    def text_begin(self) -> int:
        """Which token of the stream the next text begins with."""
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
        """Raise BrokenFrameError in a broken frame, and MemoryBusyError in the middle of a step, as in an observer."""
        if self._in_step:
            raise MemoryBusyError("a step of this frame is under way: call again once it is done")
        if self._broken:
            raise BrokenFrameError(
                "an earlier error cut a step of this frame short, and its content is wrong: close this MemoryModel "
                "(mm), then make another over its folder, or over mm.memory for a memory in RAM; it has all that was "
                "archived"
            )

    @contextlib.contextmanager
    def _step(self) -> Iterator[None]:
        """Wrap work that must be done whole. An exception out of it breaks the frame."""
        self.require_whole()
        with interrupts_between_steps(), _plain_tensors():
            self._broken = self._in_step = True
            try:
                yield
            except torch.OutOfMemoryError as error:
                raise _of_the_device(error) from error
            finally:
                self._in_step = False
            self._broken = False

    def checkpoint(self) -> None:
        """Archive what is not archived yet, and note where the frame stands. A later process goes on from there."""
        self.end_of_text()
        self._note()

    def _progress(self) -> _Progress:
        os = self.os
        return _Progress(os.stream_end, os.archived_until, os.read_until, os.recall_counts, os.cooldown_until, os.kept)

    def _note(self) -> None:
        keep_checkpoint(self.memory.core, Checkpoint.of(self.os, self._state()))
        self.parts.keep_state(self.memory.core)
        self._noted = self._progress()
        self._due, self._due_after = None, self.os.stream_end + CHECKPOINT_TOKENS

    def _note_on_the_way(self) -> None:
        """Save what a later process could not get otherwise, if this one dies before its text ends."""
        if not self._keeps_state or not self.os.archiving or self.memory.path is None:
            return
        if self._due is None and self.os.stream_end >= self._due_after:
            self._due = Checkpoint.of(self.os, self._state())
            self._due_after = self.os.stream_end
        # Never save more than the archive holds durably.
        if self._due is not None and self._due_after <= self.os.archived_until:
            if refusals := self._let_arrive():
                raise refusals[0]
            with interrupts_between_steps():
                self.memory.core.upkeep.flush()
                keep_checkpoint(self.memory.core, self._due)
            self._due, self._due_after = None, self._due_after + CHECKPOINT_TOKENS

    def _resume(self) -> None:
        """Go on where the archived stream ends: bring sinks and the newest tokens back into the frame."""
        core, stream = self.memory.core, self.os.stream
        if layers := {*self._observed_layers, *self.parts.layers_of_what_is_heard()}:
            HiddenTap(self.served.model, layers)  # layers that cannot be read are refused now
        self.parts.load_state(core)
        end = core.blocks.stream_end(stream)
        last = load_checkpoint(core)
        # The checkpoint's newest text was forgotten: it must go, before other text gets those places.
        outdated = last.stream_end is not None and last.stream_end > end and not core.read_only
        if end == 0:
            if outdated:
                keep_checkpoint(core, Checkpoint())
            return
        behind = self._ids_behind(last, end)
        stood = end - len(behind)
        self._due_after = stood + CHECKPOINT_TOKENS
        archived_until = end if len(behind) > 0 else None
        if stood > 0:
            self._come_back(stood, last.still_true(stood), archived_until)
        else:
            self.os.resume(0, self._own_pages(), archived_until=archived_until)
        if len(behind) > 0:
            started = time.monotonic()
            _LOGGER.warning(
                "reading %d tokens again: their process died, and the frame's state after them is lost", len(behind)
            )
            self.extend(behind if stood > 0 else behind[len(self._start) :], "read")
            self._topics_until = None
            self._decide(lambda: self.os.end_of_text(), None)
            _LOGGER.info("read them again in %.1f s", time.monotonic() - started)
        if outdated:
            self._note()
        elif last.stream_end == end:
            self._noted = self._progress()
        with contextlib.suppress(MemoryNotFoundError):  # it may have been forgotten
            self._last_id = int(core.blocks.token_ids(stream, end - 1, end)[0])

    def _ids_behind(self, last: Checkpoint, end: int) -> torch.Tensor:
        """Return ids [n] of the archived tokens before `end` that a frame which stood at `last` has to read again.

        There are none where the frame holds only what is archived, where they are too many, or where they or what the
        frame held were forgotten.
        """
        core, stream, nothing = self.memory.core, self.os.stream, torch.zeros(0, dtype=torch.int64, device="cpu")
        begin, rolling_from = (0, 0) if last.stream_end is None else (last.stream_end, last.rolling_from)
        if not self._keeps_state or rolling_from is None or (begin > 0 and not self._is_whole(last)):
            return nothing
        if not 0 <= rolling_from <= begin < end <= begin + 2 * CHECKPOINT_TOKENS:
            return nothing
        try:
            core.blocks.token_ids(stream, 0, min(begin, self.config.frame.sink_tokens))
            ids = core.blocks.token_ids(stream, rolling_from, end)
        except MemoryNotFoundError:
            return nothing
        behind = torch.from_numpy(ids[begin - rolling_from :].astype(np.int64))
        # The tokens before every text are put there, not read, as the tokenizer has them now.
        return behind if begin > 0 or torch.equal(behind[: len(self._start)], self._start) else nothing

    def _resident_again(self, stream_end: int, last: Checkpoint, archived_until: int | None) -> list[_core.Placement]:
        """Return what the Memory OS brings back: sinks, then the newest tokens."""
        zone, kept, counts = last.anchor_zone, last.kept, last.recall_counts
        return self.os.resume(
            stream_end,
            self._own_pages(),
            rolling_from=last.rolling_from,
            read_until=last.read_until,
            anchor_zone=None if zone is None else dataclasses.asdict(zone),
            kept=None if kept is None else dataclasses.asdict(kept),
            recall_counts=None if counts is None else dataclasses.asdict(counts),
            cooldown_until=last.cooldown_until,
            archived_until=archived_until,
        )

    def _own_pages(self) -> list[_core.PageRef]:
        """Return the stream's pages in order of time."""
        return [page for page in self.memory.core.blocks.pages() if page.stream == self.os.stream]

    # --- computing

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
        """Run `forward` on ids [n]. Return its logits alone: [1, V] of the last, or with `logits` [n, V] of all."""
        return self.forward(
            ids, origin, keep_all=logits, recall=recall, chunk_tokens=chunk_tokens, progress=progress
        ).logits

    @torch.no_grad()
    def forward(
        self,
        ids: torch.Tensor | None,
        origin: str,
        *,
        inputs_embeds: torch.Tensor | None = None,
        keep_all: bool = False,
        hidden_layers: Sequence[int] = (),
        recall: RecallPages | None = None,
        chunk_tokens: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Forward:
        """Put ids [n], n >= 1, at the end of the stream, or soft tokens: inputs_embeds [n, hidden size].

        Soft tokens are computed, archived and evicted like others, in the model's dtype. Where a memory keeps token
        ids, `ids` stand for them; without `ids`, a special token of the tokenizer does.

        An empty stream begins with what the tokenizer puts before every text. `ids` come without it, except a prompt
        from a chat template that the caller rendered. Logits are of the last token, or with `keep_all` of all. Where
        text is read (`origin` "read") without `keep_all`, they may be empty. `hidden_layers` are counted as `HiddenTap`
        does. A frame of text alone computes for them what it would otherwise only note. `recall` answers the
        RecallActions that the policy raises on the way; without it they are passed over. CapacityError where the frame
        is full.
        """
        self.require_whole()
        given = self._tokens_of(ids, inputs_embeds)
        brought = origin == "prompt" and torch.equal(given.ids[: len(self._start)], self._start)
        start = self._start if self.os.stream_end == 0 and not brought else self._start[:0]
        # Ids are read in one run with what stands before them. Soft tokens follow in a run of their own.
        runs = [Tokens(torch.cat([start, given.ids]))] if given.embeds is None else [Tokens(start), given]
        limit = chunk_tokens or self.config.frame.chunk_tokens
        rows: list[torch.Tensor] = []
        kept = HiddenRows()
        begun = False
        # While a text is read nobody asks for its newest block. So the next chunk is computed while it is stored.
        beside = origin == "read" and recall is None and self._stores_beside and self.config.frame.kept_tokens == 0
        left = sum(map(len, runs))
        for run in runs:
            done = 0
            while done < len(run):
                room = self.os.room()
                if room <= 0:
                    raise CapacityError(f"the frame of {self.config.frame.tokens} tokens is full")
                chunk = run[done : done + min(limit, room)]
                done += len(chunk)
                left -= len(chunk)
                # The last row is needed for a prompt, and for each token that is generated.
                needed = keep_all or (origin != "read" and left == 0)
                if not keep_all:
                    rows.clear()  # a text that is read has many chunks
                with self._step():
                    ends = self.parts.last("chunk") if origin == "read" and self.os.archiving else None
                    heeded = origin == "generated" and recall is not None
                    asks = self.parts.last("token") if heeded else None
                    heard = (*hidden_layers, *needs_of(ends).hidden_layers, *needs_of(asks).hidden_layers)
                    with self._adapted(origin), self._heeding_tombstones(heeded) as attended:
                        hidden = self._listened(chunk, heard, rows, keep_all=keep_all, needed=needed)
                    kept = kept.added(len(chunk), hidden, hidden_layers)
                    self._unarchived_ids.extend(chunk.ids.tolist())
                    self._unarchived_hidden = self._unarchived_hidden.added(len(chunk), hidden, self._observed_layers)
                    boundaries = self._boundaries_of(chunk.ids, turn=origin == "prompt" and not begun)
                    topics = _NO_TOPICS if ends is None else self._topics_of(ends, chunk.ids, hidden)
                    actions = self.os.observe(len(chunk), origin, boundaries, topics, attended(hidden))
                    asked = self._do(actions, beside=beside and left > 0)
                begun = True
                self._bring(asked, recall)
                self._note_on_the_way()
                if origin == "generated" and self._last_id == self._retrieve_id:
                    self.raise_signal("retrieve", recall)
                if progress is not None:
                    progress(len(chunk))
        logits = torch.cat(rows)[len(start) :] if keep_all else rows[-1]
        return Forward(logits, kept.span(len(given), len(given)))

    def _adapted(self, origin: str) -> contextlib.AbstractContextManager[None]:
        """Attach, around a forward of tokens with this origin, what parts have for it, where something was recalled."""
        if origin == "read" or self.os.recalled_tokens == 0:
            return contextlib.nullcontext()
        return self.parts.answering(self)

    @contextlib.contextmanager
    def _heeding_tombstones(self, heeded: bool) -> Iterator[Callable[[Hidden], Sequence[float]]]:
        """Wrap a forward. The result returns scores for how its newest token attends to each tombstone.

        There are no scores where tombstones are not `heeded`, or where the frame has none.
        """
        yield lambda hidden: ()

    def _tokens_of(self, ids: torch.Tensor | None, embeds: torch.Tensor | None) -> Tokens:
        if ids is None:
            if embeds is None:
                raise ValueError("neither ids nor inputs_embeds are given")
            ids = torch.full((len(embeds),), self._soft_id, dtype=torch.int64, device="cpu")
        return Tokens(ids, embeds)

    @property
    def _observed_layers(self) -> tuple[int, ...]:
        """Layers whose hidden states are kept until a block is archived, or tokens leave. All of them are read."""
        wanted: set[int] = set()
        if self.os.archiving:
            wanted |= {*self.observers.hidden_layers, *self.parts.layers_until_archived()}
        # A span leaves whether or not it was archived.
        return tuple(sorted(wanted | self.parts.layers_until_they_leave()))

    def _listened(
        self,
        chunk: Tokens,
        hidden_layers: Sequence[int],
        rows: list[torch.Tensor],
        *,
        keep_all: bool,
        needed: bool,
    ) -> Mapping[int, torch.Tensor]:
        """`_compute` the chunk and add its logits to `rows`. Return its hidden states [n, hidden size] by layer."""
        layers = {*hidden_layers, *self._observed_layers}
        if not layers:
            rows.append(self._compute(chunk, keep_all=keep_all, needed=needed))
            return {}
        # Layers that use other layers' keys may compute only the tokens whose logits are asked for.
        config = self.served.model.config.get_text_config(decoder=True)
        all_rows = keep_all or bool(getattr(config, "num_kv_shared_layers", 0))
        with HiddenTap(self.served.model, layers) as tap:
            logits = self._compute(chunk, keep_all=all_rows, needed=True)
        rows.append(logits if keep_all else logits[-1:])
        return {layer: tap.hidden(layer)[-len(chunk) :] for layer in layers}

    def _boundaries_of(self, chunk: torch.Tensor, *, turn: bool) -> list[Boundary]:
        """Return where blocks may end in this chunk. A prompt begins where a turn of the conversation ended."""
        before, self._last_id = self._last_id, int(chunk[-1])
        if not self.os.archiving:
            return []
        found = self._boundaries.find(chunk, before)
        return [(0, "turn"), *found] if turn else found

    def _topics_of(self, ends: Any, ids: torch.Tensor, hidden: Hidden) -> npt.NDArray[np.float32]:
        """Return how probably topics end in a chunk that is read."""
        begins = self._topics_until != self.os.stream_end  # a text begins, or something else came in between
        wanted = {layer: hidden[layer] for layer in needs_of(ends).hidden_layers}
        found: npt.NDArray[np.float32] = ends.chunk(ids, wanted, begins=begins)
        self._topics_until = self.os.stream_end + len(found)
        return found

    def end_of_text(self) -> None:
        """Archive what is not archived yet, as a last block. Then all that was archived is durable."""
        self._topics_until = None
        self._decide(lambda: self.os.end_of_text(), None)
        if not self.memory.core.read_only:
            self.memory.core.upkeep.flush()

    def begin_prompt(self, recall: RecallPages | None) -> None:
        """Tell the Memory OS that a question is about to be read."""
        self._decide(lambda: self.os.begin_prompt(), recall)

    def raise_signal(self, signal: str, recall: RecallPages | None) -> None:
        """Tell the Memory OS what a control token says."""
        self._decide(lambda: self.os.raise_signal(signal), recall)

    # --- executing the Memory OS

    def _decide(self, decision: Callable[[], Actions], recall: RecallPages | None) -> None:
        """Have the Memory OS decide, and do it in order, as one step.

        What it asks back follows: `recall` answers that, None passes it over. What the memory refuses to archive is
        lost to it. The rest is done, then that error is raised.
        """
        with self._step():
            asked = self._do(decision())
        self._bring(asked, recall)

    def _do(self, actions: Actions, *, beside: bool = False) -> _Asked:
        """Archive, trim and evict, in order. Return what is asked back, which comes after that.

        `beside`: blocks of `actions` may still be on their way at the end, until the next call.
        """
        # Actions refer to the rolling zone as it lay before the evictions among them.
        rolling_begin = self.os.rolling[0] - sum(a.tokens for a in actions if isinstance(a, _core.Evict))
        asked: list[_core.Recall] = []
        refusals = self._let_arrive()

        def choose(trim: _core.Trim) -> list[int]:
            try:
                return self._chosen(trim, rolling_begin)
            except BaseException as error:
                _LOGGER.warning("scoring tokens %d to %d failed: %r", trim.begin, trim.end, error)
                refusals.append(error)
                return []

        chosen: list[int] | None = None  # of the block that was just archived; stored with it
        for action, follows in itertools.zip_longest(actions, actions[1:]):
            if isinstance(action, _core.Archive):
                trim = follows if isinstance(follows, _core.Trim) else None
                try:
                    chosen = self._archive(action, rolling_begin, trim, choose, refusals if beside else None)
                except BaseException as error:
                    _LOGGER.warning("archiving tokens %d to %d failed: %r", action.begin, action.end, error)
                    refusals.append(error)
                    chosen = []  # nothing is kept of what is in no archive
            elif isinstance(action, _core.Trim):
                if chosen is None:
                    chosen = self._chosen_before(action) or choose(action)
                self.os.choose(chosen)
                chosen = None
            elif isinstance(action, _core.Evict):
                self._evict(action, rolling_begin)
                rolling_begin += action.tokens
            else:
                asked.append(action)
        kept = self.os.stream_end - self.os.open_from if self.os.archiving else 0
        del self._unarchived_ids[: len(self._unarchived_ids) - kept]
        if self.parts.mourner is not None:
            kept = max(kept, self.os.stream_end - self.os.rolling[0])
        self._unarchived_hidden = self._unarchived_hidden.newest(kept)
        return _Asked(asked, refusals[0] if refusals else None)

    def _bring(self, asked: _Asked, recall: RecallPages | None) -> None:
        """Answer RecallActions, or raise why the step before them failed."""
        if isinstance(asked.refusal, torch.OutOfMemoryError):
            raise _of_the_device(asked.refusal) from asked.refusal
        if asked.refusal is not None:
            raise asked.refusal
        if recall is not None:
            for action in asked.actions:
                self.bring_back(recall(action))

    def _chosen_before(self, trim: _core.Trim) -> list[int] | None:
        """Return the tokens that an earlier process chose of a block; None where they are not known."""
        core = self.memory.core
        (page, *_) = core.blocks.pages_of(self.os.stream, trim.begin, trim.begin + 1)
        chosen = chosen_in(core.blocks.tensors(page.block), trim.begin, trim.end) or []
        free = {token for run in trim.runs for token in range(*run)}
        return chosen if 0 < len(chosen) <= trim.tokens and free.issuperset(chosen) else None

    def _archive(
        self,
        action: _core.Archive,
        rolling_begin: int,
        trim: _core.Trim | None,
        choose: Callable[[_core.Trim], list[int]],
        refusals: list[BaseException] | None,
    ) -> list[int] | None:
        """Take the snapshot for the archive, then choose what is kept of the block, which is stored with it.

        With `refusals` it is stored while what follows goes on. Errors of refused earlier blocks are added there.
        """
        told = self._ids_of_block(action.begin, action.end)
        ids = told.numpy().astype(np.int32)
        hidden = self._unarchived_hidden.span(self.os.stream_end - action.begin, len(ids))
        payload = self._payload(action, rolling_begin)
        chosen = None if trim is None else choose(trim)
        tensors = self.parts.tensors((action.begin, action.end), told, hidden)
        if chosen:
            tensors |= self._chosen_tensors(action, chosen, rolling_begin)
        append = functools.partial(
            self.memory.core.blocks.append,
            stream=self.os.stream,
            begin=action.begin,
            end=action.end,
            sink_tokens=action.sink_tokens,
            source=self.source,
            # Rounded to what a datetime can hold, so that filters may name it.
            created_at=round(time.time(), 6) if self.archived_at is None else self.archived_at,
            tags=(*self.tags, *self._told_tags(told)),
            token_ids=ids,
            tensors=tensors,
            role=action.role,
        )

        def arrived(block: int) -> None:
            self.archived_blocks += 1
            self.observers.tell(block, (action.begin, action.end), told, hidden)

        def store() -> int:
            return append(payload=payload())

        if refusals is None:
            arrived(store())
        else:
            refusals.extend(self._on_their_way.send(store, arrived))
        return chosen

    def _let_arrive(self) -> list[BaseException]:
        """Wait until all blocks on their way are in the memory. Return the errors of those that were refused."""
        refusals = self._on_their_way.arrive()
        for error in refusals:
            _LOGGER.warning("archiving a block failed: %r", error)
        return refusals

    def _told_tags(self, ids: torch.Tensor) -> tuple[str, ...]:
        """Return the tagger's tags. A block that is read again for another model has its tags already."""
        return () if self.tagger is None or self.archived_at is not None else self.tagger(ids)

    def _ids_of_block(self, begin: int, end: int) -> torch.Tensor:
        """Return ids int64 [n] on the CPU, of a block that was just closed."""
        first = len(self._unarchived_ids) - (self.os.stream_end - begin)
        if first < 0:  # it began before the process that reads it again
            return torch.from_numpy(self.memory.core.blocks.token_ids(self.os.stream, begin, end).astype(np.int64))
        return torch.tensor(self._unarchived_ids[first : first + end - begin], dtype=torch.int64, device="cpu")

    def observe(self, on_block: OnBlock, *, hidden_layers: Sequence[int] = (), background: bool = False) -> Observation:
        """Call `on_block` for every block that is archived from now on, until the result is closed.

        It gets hidden states of `hidden_layers` (counted as `HiddenTap` does), which the frame keeps until a block is
        archived. Tokens that were in the frame before have none. See `Observers` for order, threads and errors.
        """
        HiddenTap(self.served.model, hidden_layers)  # layers that cannot be read are refused now
        return self.observers.add(on_block, hidden_layers, background=background)

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
        self.bring_back(Recalled(pages, temperatures, best))

    def bring_back(self, recalled: Recalled) -> None:
        """Do as `recall`, for all that is to come back. Blocks that come as Detail Tokens stand before the pages.

        With `answer.recall_mode` "detail" a block that has Detail Tokens never comes as pages. Where no block is named,
        the named pages' blocks come as Detail Tokens.
        """
        temperature: Mapping[Page, float] = (
            dict(zip(map(identity, recalled.pages), recalled.temperatures, strict=True))
            if recalled.temperatures
            else {}
        )
        with self._step():
            pages, soft = self._as_details(recalled)
            kept = self._kept_payloads(pages)
            pages, temperature = self._of_whole_blocks(pages, temperature, kept)
            offers = [_core.Offer(page, "conversation", by="conversation") for page in self._conversation()]
            offers += [block.offer for block in soft.values()]
            offers += [
                _core.Offer(page, "chosen", tokens=kept[page.block].tokens) if page.block in kept else _core.Offer(page)
                for page in pages
            ]
            placements = self.os.recall(offers)
            if not self.os.evicted:
                return
            try:
                self._place(placements, temperature, recalled.best, kept, soft)
            except BaseException:
                self._empty_recalled()
                self._broken = False
                raise

    def _of_whole_blocks(
        self, pages: Sequence[_core.PageRef], temperature: Mapping[Page, float], kept: Mapping[int, KeptPayload]
    ) -> tuple[Sequence[_core.PageRef], Mapping[Page, float]]:
        """Replace pages of blocks in `kept` by all pages of the block: its chosen tokens lie in all of them."""
        if not kept:
            return pages, temperature
        core = self.memory.core
        out: list[_core.PageRef] = []
        by_page = dict(temperature)
        named: set[int] = set()
        for page in reversed(pages):
            if page.block not in kept:
                out.append(page)
            elif page.block not in named:
                named.add(page.block)
                block = core.blocks.info(page.block)
                whole = core.blocks.pages_of(block.stream, block.begin, block.end)
                out += reversed(whole)
                by_page |= {identity(one): temperature.get(identity(page), 1.0) for one in whole}
        return out[::-1], by_page

    def _conversation(self) -> Sequence[_core.PageRef]:
        """Return the conversation's pages in order of time, without those that were forgotten."""
        begin, end = self.os.conversation
        if begin >= end:
            return []
        newest = self.memory.core.search.recent_pages(self.os.stream, end, _MOST_TURNS, roles=("asked", "said"))
        return [page for page in newest if page.begin >= begin]

    def clear_recalled(self) -> None:
        """Empty the recalled zone. Errors as `require_whole` raises them."""
        with self._step():
            self._empty_recalled()

    def _empty_recalled(self) -> None:
        self.os.clear_recalled()
        if self.os.evicted:
            self._place([], {}, [], {}, {})

    def newest_tokens(self, count: int) -> torch.Tensor:
        """Return ids [n] int64 of the newest `count` archived tokens; none where they were forgotten or refused."""
        end = self.os.archived_until
        try:
            ids = self.memory.core.blocks.token_ids(self.os.stream, max(0, end - count), end)
        except MemoryNotFoundError:
            return torch.zeros(0, dtype=torch.int64, device="cpu")
        return torch.from_numpy(ids.astype(np.int64))

    def _token_ids(self, placements: Sequence[_core.Placement]) -> torch.Tensor:
        """Return ids [n] of placed tokens, as the memory has them."""
        core = self.memory.core
        spans = [(p.page.stream, p.page.begin + p.first_token, p.tokens) for p in placements]
        ids = [core.blocks.token_ids(stream, begin, begin + count) for stream, begin, count in spans]
        return torch.from_numpy(np.concatenate([np.zeros(0, dtype=np.int32), *ids]).astype(np.int64))

    # --- leaving no trace

    @contextlib.contextmanager
    def branch(self, *, traced: bool = True) -> Iterator[None]:
        """Archive nothing inside. Afterwards frame and Memory OS are what they were. Branches nest.

        What was decided inside stays in the Memory OS's trace, marked, unless `traced` is False. A frame that broke
        inside is whole again.
        """
        self.require_whole()
        saved_os, branch_os, saved_at = self.os, self.os.branch(), self.branched_at
        ids, hidden, last_id = list(self._unarchived_ids), self._unarchived_hidden, self._last_id
        with _plain_tensors():
            put_back = self._remember()
        try:
            self.os = branch_os
            self.branched_at = saved_os.stream_end if saved_at is None else saved_at
            yield
        finally:
            self._broken = False
            self.branched_at = saved_at
            with self._step():
                put_back()
                self.os = saved_os
                self._unarchived_ids, self._unarchived_hidden, self._last_id = ids, hidden, last_id
                if traced:
                    saved_os.take_trace(branch_os)


def identity(page: _core.PageRef) -> Page:
    """Return what tells the page from others of its memory."""
    return page.block, page.page


def _of_the_device(error: torch.OutOfMemoryError) -> DeviceMemoryError:
    return DeviceMemoryError(
        f"{str(error).partition('. GPU')[0]}: a step of the frame found no room on the device; smaller "
        "frame.chunk_tokens, frame.tokens or search.heads_device_bytes take less. What was archived stays"
    )
