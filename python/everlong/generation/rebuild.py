"""Makes a memory anew from the token ids of another: for another model, or for one with other adapters at work.

Keys and values belong to a model, ids to the tokenizer. The other memory's blocks are read again one by one. Each keeps
its span, source, tags, role and time. What was forgotten is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import everlong._core as _core
from everlong.errors import MemoryNotFoundError, ModelMismatchError
from everlong.frame.frame import Frame
from everlong.frame.read_request import Origin
from everlong.generation.progress import Progress, report_progress
from everlong.memory import Memory

_ORIGINS: dict[str, Origin] = {
    "read": "read",
    "asked": "prompt",
    "said": "generated",
}  # by role: how its tokens came into a frame


def rebuild(frame: Frame, old: Memory, start: Sequence[int], *, progress: Progress) -> tuple[int, int]:
    """Read all of `old` that the frame's memory lacks. Return how many tokens were read, and were there already.

    `start` are the ids that an empty stream of the frame begins with by itself. A rebuilding that was cut short goes
    on. ValueError where the memory holds anything but the beginning of `old`; ModelMismatchError where `old` has
    another tokenizer's ids.
    """
    if old.core.manifest().tokenizer != frame.memory.core.manifest().tokenizer:
        raise ModelMismatchError(
            "the memory was made with another tokenizer: its ids mean other text to this model; read the text itself"
        )
    frame.end_of_text()  # what an earlier process had read, and not archived
    there = _tokens_there(frame, old)
    blocks = list(_in_order(old))
    total = sum(block.end - block.begin for block in blocks) - there
    archive, passed = frame.archive, 0
    with report_progress(progress, "rebuilding") as reporter:
        try:
            for block in blocks:
                tokens = block.end - block.begin
                skipped = min(max(there - passed, 0), tokens)
                passed += tokens
                if skipped == tokens:
                    continue
                ids = torch.from_numpy(_ids_of(old, block)[skipped:].astype(np.int64))
                if frame.os.stream_end == 0 and ids[: len(start)].tolist() == list(start):
                    ids = ids[len(start) :]  # the frame puts them there
                archive.source, archive.tags, archive.created_at = block.source, tuple(block.tags), block.created_at
                if len(ids) > 0:
                    frame.extend(ids, _ORIGINS[block.role], progress=lambda count: reporter.advance(count, total))
                frame.end_of_text()
        finally:
            archive.source, archive.tags, archive.created_at = "", (), None
    frame.checkpoint()
    return reporter.done, there


def _in_order(old: Memory) -> Iterator[_core.BlockInfo]:
    """Yield its blocks, stream after stream, each in order of time."""
    yield from sorted(old.core.blocks.infos(), key=lambda block: (block.stream, block.begin))


def _ids_of(old: Memory, block: _core.BlockInfo) -> npt.NDArray[Any]:
    return old.core.blocks.token_ids(block.stream, block.begin, block.end)


def _tokens_there(frame: Frame, old: Memory) -> int:
    """Return how many of the tokens of `old` the frame's memory has. ValueError where it has others."""
    core, stream = frame.memory.core, frame.os.stream
    end = core.blocks.stream_end(stream)
    other = ValueError("the memory holds something else than the beginning of what is to be rebuilt: name a new one")
    compared = 0
    for block in _in_order(old):
        if compared == end:
            break
        ids = _ids_of(old, block)[: end - compared]
        try:
            same = np.array_equal(core.blocks.token_ids(stream, compared, compared + len(ids)), ids)
        except MemoryNotFoundError:  # forgotten in the new one
            raise other from None
        if not same:
            raise other
        compared += len(ids)
    if compared < end:
        raise other
    return compared
