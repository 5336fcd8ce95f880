"""What a memory holds of the files that it is kept in step with: told by its blocks, so that no crash can part the two.

Beside them the memory keeps a table of the files' sizes and times, which saves looking into files that did not change.
It may be old, or missing: then more files are looked into. It says nothing of a file whose text was forgotten.
"""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

import everlong._core as _core
from everlong.memory.origins import content_in, origins_in, without_older

if TYPE_CHECKING:
    from everlong.memory.memory import Memory

_TABLE = "synced.json"
_writing = (
    threading.RLock()
)  # of this process: a compacting in one thread must not bring back the table of before a sync
EMPTY = "is empty"


@dataclasses.dataclass
class SyncedFile:
    """The blocks that were read from one file."""

    blocks: dict[str, list[int]] = dataclasses.field(default_factory=dict)  # by what the file was: its digest
    earlier: set[str] = dataclasses.field(default_factory=set)  # where it stood before
    whole: bool = True  # it was read to its end

    def all(self) -> list[int]:
        """Return all blocks, of whatever the file was."""
        return [block for blocks in self.blocks.values() for block in blocks]


@dataclasses.dataclass(frozen=True)
class FileState:
    """A file as it was when it was looked into."""

    size: int
    time: int  # of its last change, in ns since 1970; -1 where it may have changed again within the clock's tick
    digest: str
    why: str = ""  # it holds no text, because of that


def synced_files(memory: Memory | None) -> dict[str, SyncedFile]:
    """Return what the memory holds of synced files, by their paths."""
    from everlong.memory.unfinished import unfinished_in

    if memory is None:
        return {}
    found = _synced_files(memory.core)
    for reading in unfinished_in(memory) if found else ():
        for origin in reading.origins:
            if origin in found:
                found[origin].whole = False
    return found


def _synced_files(core: _core.Memory) -> dict[str, SyncedFile]:
    found: dict[str, SyncedFile] = {}
    for info in core.blocks.infos():
        digest, places = content_in(info.tags), origins_in(info.tags)
        if digest and places:
            held = found.setdefault(places[-1], SyncedFile())
            held.blocks.setdefault(digest, []).append(info.id)
            held.earlier.update(places[:-1])
    return found


def table_of(memory: Memory | None) -> dict[str, FileState]:
    """Return the table, by paths; empty where there is none, or it cannot be read."""
    return {} if memory is None else _table_of(memory.core)


def _table_of(core: _core.Memory) -> dict[str, FileState]:
    try:
        kept = core.file(_TABLE)
        return {path: FileState(*row) for path, row in json.loads(kept or b"{}").items()}
    except (ValueError, TypeError, AttributeError):
        return {}


def store_table(core: _core.Memory, table: Mapping[str, FileState]) -> None:
    """Keep the table, but for files that hold text of which the memory has nothing."""
    with _writing:
        held = _synced_files(core)
        rows = {
            path: dataclasses.astuple(seen)
            for path, seen in table.items()
            if seen.why or (path in held and seen.digest in held[path].blocks)
        }
        core.put_file(_TABLE, json.dumps(rows).encode())


def drop_forgotten(core: _core.Memory) -> None:
    """Drop what the table says of files that were forgotten, and what blocks that are there say of earlier files.

    A block whose file changed behind it still had the digests of what the file was.
    """
    for info in core.blocks.infos():
        left = without_older(info.tags)
        if len(left) < len(info.tags):
            core.blocks.set_tags(info.id, left)
    with _writing:
        if core.file(_TABLE):
            store_table(core, _table_of(core))  # one that cannot be read is an empty one
