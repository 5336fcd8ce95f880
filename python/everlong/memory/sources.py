"""What a memory holds, by the names under which it was read."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from everlong.memory.memory import Memory
from everlong.memory.records import Block
from everlong.text.notebook_html import CONVERSATION


@dataclasses.dataclass(frozen=True)
class Source:
    """What a memory holds under one name, from one place."""

    name: str
    origin: str  # the path of its file, or what was given for it; "" where it has none
    shown: str  # its name, with its origin where others have the same name
    blocks: int
    tokens: int
    payload_bytes: int
    first: str  # when its first and its last block were archived, UTC
    last: str


def source_meant(memory: Memory, display_name: str) -> str:
    """Return the source that a display name means. A conversation has none: its name may be a source's own, too."""
    return "" if display_name == CONVERSATION and not memory.blocks(display_name, limit=1) else display_name


def sources(memory: Memory) -> list[Source]:
    """Return the sources by name, in the order in which they were first read."""
    return page_of_sources(memory)[0]


def page_of_sources(memory: Memory, behind: int = 0, limit: int | None = None) -> tuple[list[Source], int | None]:
    """Return at most `limit` sources, and where the next page begins; None: there is no other.

    A place is a number: `behind` is that of the page before. Sources that come or go in between move no other.
    """
    return _page(memory.blocks(), behind, limit)


def sources_of(blocks: Iterable[Block]) -> list[Source]:
    """Return the sources of some blocks, as if a memory held no others."""
    return _page(blocks, 0, None)[0]


def _page(blocks: Iterable[Block], behind: int, limit: int | None) -> tuple[list[Source], int | None]:
    found: dict[tuple[str, str], list[Block]] = {}
    for block in blocks:
        found.setdefault((block.source, block.origin), []).append(block)
    names = [name for name, _ in found]
    places = {named: blocks[0].id for named, blocks in found.items()}  # of a source its first block
    listed = [named for named in found if places[named] > behind]
    more = None if limit is None or len(listed) <= limit else places[listed[limit - 1]]

    def display_name(name: str, origin: str) -> str:
        return f"{name} ({origin})" if origin and names.count(name) > 1 else name

    page = [
        Source(
            name=name or CONVERSATION,
            origin=origin,
            shown=display_name(name, origin) or CONVERSATION,
            blocks=len(own := found[name, origin]),
            tokens=sum(block.span[1] - block.span[0] for block in own),
            payload_bytes=sum(block.payload_bytes for block in own),
            first=min(block.created_at for block in own).isoformat(timespec="seconds"),
            last=max(block.created_at for block in own).isoformat(timespec="seconds"),
        )
        for name, origin in listed[:limit]
    ]
    return page, more
