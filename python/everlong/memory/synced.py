"""What a memory holds of the files that it is kept in step with: told by its blocks, so that no crash can part the two.

Beside them the memory keeps a table of the files' sizes and times, which saves looking into files that did not change.
It may be old, or missing: then more files are looked into.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping

import everlong._core as _core
from everlong.memory.memory import Memory
from everlong.memory.origins import content_in, origins_in
from everlong.memory.unfinished import unfinished_in

_TABLE = "synced.json"
EMPTY = "is empty"


@dataclasses.dataclass
class Held:
    """The blocks that were read from one file."""

    blocks: dict[str, list[int]] = dataclasses.field(default_factory=dict)  # by what the file was: its digest
    earlier: set[str] = dataclasses.field(default_factory=set)  # where it stood before
    whole: bool = True  # it was read to its end

    def all(self) -> list[int]:
        """Return all blocks, of whatever the file was."""
        return [block for blocks in self.blocks.values() for block in blocks]


@dataclasses.dataclass(frozen=True)
class Seen:
    """A file as it was when it was looked into."""

    size: int
    time: int  # of its last change, in ns since 1970; -1 where it may have changed again within the clock's tick
    digest: str
    why: str = ""  # it holds no text, because of that


def held_in(memory: Memory | None) -> dict[str, Held]:
    """Return what the memory holds of synced files, by their paths."""
    found: dict[str, Held] = {}
    if memory is None:
        return found
    for info in memory.core.blocks.infos():
        digest, places = content_in(info.tags), origins_in(info.tags)
        if digest and places:
            held = found.setdefault(places[-1], Held())
            held.blocks.setdefault(digest, []).append(info.id)
            held.earlier.update(places[:-1])
    for reading in unfinished_in(memory) if found else ():
        for origin in reading.origins:
            if origin in found:
                found[origin].whole = False
    return found


def table_of(memory: Memory | None) -> dict[str, Seen]:
    """Return the table, by paths; empty where there is none, or it cannot be read."""
    try:
        kept = memory.core.file(_TABLE) if memory is not None else None
        return {path: Seen(*row) for path, row in json.loads(kept or b"{}").items()}
    except (ValueError, TypeError, AttributeError):
        return {}


def keep_table(core: _core.Memory, table: Mapping[str, Seen]) -> None:
    """Keep the table."""
    core.put_file(_TABLE, json.dumps({path: dataclasses.astuple(seen) for path, seen in table.items()}).encode())
