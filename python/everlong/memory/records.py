"""What a memory tells of itself: its blocks, how much it holds, and what a check of it found."""

from __future__ import annotations

import dataclasses
import datetime
from typing import cast

import everlong._core as _core
from everlong.graph.reserved_tags import keyphrases_in, moment_of, nearest_moment
from everlong.memory.origins import split_reserved_tags
from everlong.memory.where import Role
from everlong.text import notebook_html


@dataclasses.dataclass(frozen=True)
class Block:
    """A closed span of the stream: the unit of archive, naming and citation."""

    id: int
    span: tuple[int, int]  # tokens of the stream
    source: str
    created_at: datetime.datetime  # UTC
    tags: tuple[str, ...]  # the user's; a tag of everlong's own that cannot be read stands among them as it is
    payload_bytes: int
    role: Role  # of all of it: read, asked or said
    origin: str = ""  # where it was read from: the path of its file, or what `read` was told
    happened: datetime.datetime | None = None  # UTC; when the events in it happened, as `read` was told
    keyphrases: tuple[str, ...] = ()  # what a tagger said that it is about (`archive.tagger`)


@dataclasses.dataclass(frozen=True)
class MemoryStats:
    """How much a memory holds. Forgotten blocks count in `dead_bytes` alone."""

    blocks: int
    pages: int
    tokens: int
    payload_bytes: int  # encoded keys and values
    disk_bytes: int  # 0 for a memory in RAM
    dead_bytes: int  # of forgotten blocks; `compact` gives them back
    host_bytes: int  # in RAM now, besides the indexes: payload and catalog
    catalog_bytes: int  # of host_bytes: spans, token ids, tags, graph; for a folder a cache of them
    index_bytes: int  # indexes in RAM now
    detail_bytes: int  # the blocks' Detail Tokens
    kept_bytes: int  # chosen tokens of blocks: which, and their payloads

    @property
    def detail_token_bytes(self) -> float:
        """Bytes of Detail Tokens for each token of the memory."""
        return self.detail_bytes / self.tokens if self.tokens > 0 else 0.0

    def _repr_html_(self) -> str:
        """Return what a notebook shows: what is not nothing."""
        return notebook_html.table((name, value) for name, value in vars(self).items() if value)


@dataclasses.dataclass(frozen=True)
class Damage:
    """Bytes that do not match their checksum or their format."""

    block: int  # 0 where no block can be named
    what: str  # names page, part and file


@dataclasses.dataclass(frozen=True)
class VerifyReport:
    """What a check of a whole memory found."""

    blocks: int
    records: int  # pages of every kind, read back and checked
    bytes: int
    damage: tuple[Damage, ...]
    dropped: tuple[int, ...]  # blocks that a repair took out

    @classmethod
    def of(cls, core: _core.VerifyReport) -> VerifyReport:
        damage = tuple(Damage(found.block, found.what) for found in core.damage)
        return cls(core.blocks, core.records, core.bytes, damage, tuple(core.dropped))

    def _repr_html_(self) -> str:
        """Return what a notebook shows: what was read, and the damage, which unfolds."""
        read = notebook_html.table((("blocks", self.blocks), ("records", self.records), ("bytes", self.bytes)))
        if not self.damage:
            return read + notebook_html.paragraph("no damage")
        lines = "\n".join(f"block {one.block}: {one.what}" for one in self.damage)
        return read + notebook_html.unfolding(f"{len(self.damage):,} damaged", lines)


def block_of(info: _core.BlockInfo) -> Block:
    tags, origin = split_reserved_tags(info.tags)
    return Block(
        id=info.id,
        span=(info.begin, info.end),
        source=info.source,
        created_at=nearest_moment(info.created_at),
        tags=tags,
        payload_bytes=info.payload_bytes,
        role=cast(Role, info.role),
        origin=origin,
        happened=None if info.happened is None else moment_of(info.happened),
        keyphrases=keyphrases_in(info.tags),
    )
