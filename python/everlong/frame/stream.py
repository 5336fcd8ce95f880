"""The stream before a frame: what decides over it, and its newest tokens. The objects of one frame share it."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import torch

import everlong._core as _core
from everlong.config import MemoryConfig
from everlong.errors import MemoryNotFoundError
from everlong.frame.checkpoint import Checkpoint
from everlong.frame.part import Hidden
from everlong.frame.parts import Parts
from everlong.frame.taps import HiddenRows
from everlong.kv_cache.steps import Steps
from everlong.kv_cache.visible_spans import VisibleSpans
from everlong.memory import Memory

# The most blocks of a conversation, questions and answers, that are looked up.
_MOST_TURNS = 64


class Stream:
    """One stream of one memory, and its Memory OS."""

    def __init__(self, memory: Memory, config: MemoryConfig, parts: Parts | None = None) -> None:
        """Take the parts at work as `parts`."""
        self.memory = memory
        self.config = config
        self.parts = parts or Parts()
        self.steps = Steps()
        self.os = _core.MemoryOs(self.parts.configure(config.os_config()))
        if memory.core.read_only:
            self.os.stop_archiving()
        self.branched_at: int | None = None  # inside a branch: where the stream stood before
        self.forgettings = 0  # what the memory had counted when the frame last looked
        # Of a reader: the newest block when it took up what it stands on. Later ones may have the places of blocks that
        # it holds and another process forgot. None: this process archives.
        self.newest_block: int | None = None
        self.visible: VisibleSpans | None = None  # inside a branch: what a question may attend to; None: everything
        # Id of the newest token; None where there is none, or where it was forgotten before this frame began.
        self.last_id: int | None = None
        self._ids: list[int] = []  # of tokens that no block has: [os.open_from, os.stream_end)
        # Their hidden states, of the layers that are read; layers that tombstones are made from cover all of rolling.
        self._hidden = HiddenRows()

    # --- its newest tokens

    def added(self, ids: torch.Tensor, hidden: Hidden, layers: Sequence[int]) -> None:
        """Note that tokens were computed, with the states of these layers."""
        self._ids.extend(ids.tolist())
        self._hidden = self._hidden.added(len(ids), hidden, layers)

    def drop_archived(self) -> None:
        """Forget ids and states of tokens in a block; states of all in rolling stay where a part wants them."""
        kept = self.os.stream_end - self.os.open_from if self.os.archiving else 0
        del self._ids[: len(self._ids) - kept]
        if self.parts.tombstone_writer is not None:
            kept = max(kept, self.os.stream_end - self.os.rolling[0])
        self._hidden = self._hidden.newest(kept)

    def ids(self, begin: int, end: int) -> torch.Tensor:
        """Return ids int64 [n] on the CPU, of a block that was just closed."""
        first = len(self._ids) - (self.os.stream_end - begin)
        if first < 0:  # it began before the process that reads it again
            return self.read(begin, end)
        return torch.tensor(self._ids[first : first + end - begin], dtype=torch.int64, device="cpu")

    def hidden(self, begin: int, end: int) -> dict[int, torch.Tensor]:
        """Return hidden states [end - begin, hidden size] by layer, without layers that lack some of them."""
        return self._hidden.span(self.os.stream_end - begin, end - begin)

    def begin_anew(self) -> None:
        """Hold no token, before the frame goes on with what is archived."""
        self._ids, self._hidden, self.last_id = [], HiddenRows(), None

    def branch(self) -> Callable[[], _core.MemoryOs]:
        """Go on with a branch of the Memory OS. Return a call that goes back, and returns that branch."""
        saved = self.os, self.branched_at, self.visible, list(self._ids), self._hidden, self.last_id
        self.os, self.branched_at = saved[0].branch(), saved[0].stream_end if saved[1] is None else saved[1]
        branched = self.os

        def go_back() -> _core.MemoryOs:
            self.os, self.branched_at, self.visible, self._ids, self._hidden, self.last_id = saved
            return branched

        return go_back

    def fork(self) -> Stream:
        """Return a stream that goes on from here in a branch, and archives nothing. It shares memory and parts."""
        other = copy.copy(self)
        other.steps, other._ids = Steps(), list(self._ids)
        other.os = self.os.branch()
        other.branched_at = self.os.stream_end if self.branched_at is None else self.branched_at
        return other

    # --- its archive

    def is_at(self, block: int) -> bool:
        """Return whether what this stream holds at the block's places may be of that block.

        Text that a writer adds may come where a reader holds text that was forgotten, or its own turns.
        """
        return self.newest_block is None or block <= self.newest_block

    def read(self, begin: int, end: int) -> torch.Tensor:
        """Return ids int64 [n] on the CPU, as the memory has them. MemoryNotFoundError where they were forgotten."""
        return torch.from_numpy(self.memory.core.blocks.token_ids(self.os.stream, begin, end).astype(np.int64))

    def newest_archived(self, count: int) -> torch.Tensor:
        """Return ids [n] int64 of the newest `count` archived tokens; none where they were forgotten or refused."""
        end = self.os.archived_until
        try:
            return self.read(max(0, end - count), end)
        except MemoryNotFoundError:
            return torch.zeros(0, dtype=torch.int64, device="cpu")

    def ids_of(self, placements: Sequence[_core.Placement]) -> torch.Tensor:
        """Return ids [n] of placed tokens, as the memory has them."""
        core = self.memory.core
        spans = [(p.page.stream, p.page.begin + p.first_token, p.tokens) for p in placements]
        ids = [core.blocks.token_ids(stream, begin, begin + count) for stream, begin, count in spans]
        return torch.from_numpy(np.concatenate([np.zeros(0, dtype=np.int32), *ids]).astype(np.int64))

    def conversation(self) -> Sequence[_core.PageRef]:
        """Return the conversation's pages in order of time, without those that were forgotten or are hidden."""
        begin, end = self.os.conversation
        if begin >= end:
            return []
        newest = self.memory.core.search.recent_pages(self.os.stream, end, _MOST_TURNS, roles=("asked", "said"))
        pages = [page for page in newest if page.begin >= begin]
        pages = [page for page in pages if self.is_at(page.block)]
        return [page for page in pages if self.visible is None or self.visible.whole(page.begin, page.end)]

    def newest_turn(self) -> torch.Tensor:
        """Return ids [n] int64 of the question and answer that the stream ends with; none where text was read since."""
        end, is_question = self.os.stream_end, False
        core, begin = self.memory.core, end
        for page in reversed(core.search.recent_pages(self.os.stream, end, _MOST_TURNS, roles=("asked", "said"))):
            try:
                role = core.blocks.info(page.block).role
            except MemoryNotFoundError:  # another thread forgot it meanwhile
                break
            if page.end != begin or (is_question and role == "said") or not self.is_at(page.block):
                break
            is_question, begin = role == "asked", page.begin
        try:
            return self.read(begin, end)
        except MemoryNotFoundError:
            return self.read(end, end)

    def resume(self, stream_end: int, last: Checkpoint, archived_until: int | None) -> list[_core.Placement]:
        """Go on where a frame stood. Return what the Memory OS brings back: sinks, then the newest tokens."""
        own = [page for page in self.memory.core.blocks.pages() if page.stream == self.os.stream]
        if self.memory.core.read_only:
            self.newest_block = max((page.block for page in own), default=-1)
        if stream_end == 0:
            return self.os.resume(0, own, archived_until=archived_until)
        zone, kept, counts = last.anchor_zone, last.kept, last.recall_counts
        return self.os.resume(
            stream_end,
            own,
            rolling_from=last.rolling_from,
            read_until=last.read_until,
            anchor_zone=None if zone is None else dataclasses.asdict(zone),
            kept=None if kept is None else dataclasses.asdict(kept),
            recall_counts=None if counts is None else dataclasses.asdict(counts),
            cooldown_until=last.cooldown_until,
            archived_until=archived_until,
        )
