"""How long a memory keeps what it has, and how much of it: the oldest sources go."""

from __future__ import annotations

import dataclasses
import datetime
import logging
from collections.abc import Sequence

from everlong.memory.memory import Memory
from everlong.memory.records import Block

_LOGGER = logging.getLogger("everlong")


@dataclasses.dataclass(frozen=True)
class _Text:
    """What goes as a whole: a source, or a turn of a conversation."""

    source: str
    blocks: tuple[int, ...]
    payload_bytes: int
    newest: datetime.datetime


def retire(memory: Memory, max_bytes: int | None, keep_for: float | None) -> tuple[str, ...]:
    """Forget the oldest sources, where the memory has more than `max_bytes`, and those older than `keep_for` seconds.

    Bytes are those on disk, or in RAM for a memory in RAM. A source is as old as its newest block; the newest one
    stays, however large. What goes is forgotten and compacted, and told as a warning of the logger `everlong`. Returns
    the sources that went, oldest first; "" is a turn of a conversation.
    """
    if max_bytes is None and keep_for is None:
        return ()
    texts = _texts_of(memory.blocks())
    gone: list[_Text] = []
    if keep_for is not None:
        until = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=keep_for)
        gone = [text for text in texts[:-1] if text.newest < until]
        _forget(memory, gone)
    texts = texts[len(gone) :]
    while max_bytes is not None and len(texts) > 1 and (more := _bytes_of(memory) - max_bytes) > 0:
        going: list[_Text] = []
        while len(texts) > 1 and sum(text.payload_bytes for text in going) < more:
            going.append(texts.pop(0))
        _forget(memory, going)
        gone += going
    if gone:
        named = list(dict.fromkeys(text.source or "conversation" for text in gone))
        _LOGGER.warning("the memory let its oldest sources go: %s", ", ".join(named))
    return tuple(dict.fromkeys(text.source for text in gone))


def _texts_of(blocks: Sequence[Block]) -> list[_Text]:
    """Return what goes as a whole, oldest first."""
    of: dict[tuple[str, str, int], list[Block]] = {}
    for block in blocks:
        alone = 0 if block.source or block.origin else block.id
        of.setdefault((block.source, block.origin, alone), []).append(block)
    texts = [
        _Text(
            source,
            tuple(block.id for block in those),
            sum(block.payload_bytes for block in those),
            max(block.created_at for block in those),
        )
        for (source, _, _), those in of.items()
    ]
    return sorted(texts, key=lambda text: (text.newest, text.blocks[-1]))


def _forget(memory: Memory, texts: Sequence[_Text]) -> None:
    if texts:
        memory.forget([block for text in texts for block in text.blocks])
        memory.compact()


def _bytes_of(memory: Memory) -> int:
    stats = memory.stats()
    return stats.payload_bytes if memory.path is None else stats.disk_bytes
