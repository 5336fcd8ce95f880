"""Notes of where a frame stands: checkpoints in the memory, from which a later process goes on."""

from __future__ import annotations

import dataclasses

import torch

from everlong.errors import MemoryNotFoundError
from everlong.frame.archive import FrameArchive
from everlong.frame.checkpoint import Checkpoint, keep_checkpoint
from everlong.frame.stream import Stream
from everlong.frame.zones import Zones
from everlong.kv_cache.interrupts import interrupts_between_steps

# Interval, in tokens, at which a frame saves what is in no archive while it reads a text. After a process died, the
# next one reads at most twice as many tokens again.
CHECKPOINT_TOKENS = 8192


@dataclasses.dataclass(frozen=True)
class Progress:
    """What a checkpoint holds; a new one is due when any of it has changed."""

    stream_end: int
    archived_until: int
    read_until: int
    recall_counts: object
    cooldown_until: int
    kept: object  # a question alone may move the kept tokens


class Checkpointer:
    """Keeps the checkpoints of one frame."""

    def __init__(self, stream: Stream, zones: Zones, archive: FrameArchive) -> None:
        self._stream, self._zones, self._archive = stream, zones, archive
        self._noted: Progress | None = None  # what the memory's checkpoint holds
        self._due: Checkpoint | None = None  # kept once the archive has come as far
        self._due_after = CHECKPOINT_TOKENS  # where the stream stood for `_due`; else the earliest place of the next

    @property
    def up_to_date(self) -> bool:
        """Whether the memory's checkpoint says where the frame stands now."""
        return self._progress() == self._noted

    def checkpoint(self) -> None:
        """Note where the frame stands. All that it read must be archived."""
        core = self._stream.memory.core
        keep_checkpoint(core, self._checkpoint())
        self._stream.parts.store_state(core)
        self._noted = self._progress()
        self._due, self._due_after = None, self._stream.os.stream_end + CHECKPOINT_TOKENS

    def checkpoint_while_reading(self) -> None:
        """Save what a later process could not get otherwise, if this one dies before its text ends."""
        os, memory = self._stream.os, self._stream.memory
        if not self._zones.keeps_state or not os.archiving or memory.path is None:
            return
        if self._due is None and os.stream_end >= self._due_after:
            self._due = self._checkpoint()
            self._due_after = os.stream_end
        # Never save more than the archive holds durably.
        if self._due is not None and self._due_after <= os.archived_until:
            if refusals := self._archive.flush():
                raise refusals[0]
            with interrupts_between_steps():
                memory.core.upkeep.flush()
                keep_checkpoint(memory.core, self._due)
            self._due, self._due_after = None, self._due_after + CHECKPOINT_TOKENS

    def resume(self, stood: int, *, noted: bool) -> None:
        """Count from where the frame goes on. `noted`: the memory's checkpoint says just that."""
        self._due, self._due_after = None, stood + CHECKPOINT_TOKENS
        if noted:
            self._noted = self._progress()

    def ids_behind(self, last: Checkpoint, end: int, start: torch.Tensor) -> torch.Tensor:
        """Return ids [n] of the archived tokens before `end` that a frame which stood at `last` has to read again.

        There are none where the frame holds only what is archived, where they are too many, or where they or what the
        frame held were forgotten. `start`: ids of the tokens before every text.
        """
        core, stream, nothing = self._stream.memory.core, self._stream.os.stream, start[:0]
        begin, rolling_from = (0, 0) if last.stream_end is None else (last.stream_end, last.rolling_from)
        if not self._zones.keeps_state or rolling_from is None or (begin > 0 and not self._zones.is_whole(last)):
            return nothing
        if not 0 <= rolling_from <= begin < end <= begin + 2 * CHECKPOINT_TOKENS:
            return nothing
        try:
            core.blocks.token_ids(stream, 0, min(begin, self._stream.config.frame.sink_tokens))
            ids = self._stream.read(rolling_from, end)
        except MemoryNotFoundError:
            return nothing
        behind = ids[begin - rolling_from :]
        # The tokens before every text are put there, not read, as the tokenizer has them now.
        return behind if begin > 0 or torch.equal(behind[: len(start)], start) else nothing

    def _checkpoint(self) -> Checkpoint:
        return Checkpoint.of(self._stream.os, self._zones.state(), self._stream.forgettings)

    def _progress(self) -> Progress:
        os = self._stream.os
        return Progress(os.stream_end, os.archived_until, os.read_until, os.recall_counts, os.cooldown_until, os.kept)
