"""Readings of a memory that were cut short, or are under way in another process."""

from __future__ import annotations

import bisect
import collections
import dataclasses
import json
from collections.abc import Iterator, Sequence
from typing import Any

import everlong._core as _core
from everlong.memory.memory import Memory
from everlong.memory.origins import content_in
from everlong.memory.records import block_of


@dataclasses.dataclass(frozen=True)
class InterruptedReading:
    """One text, or several that were to be read one after the other. The last of them was not read to its end."""

    sources: tuple[str, ...]
    origins: tuple[str, ...]  # paths of their files; those without a file are left out
    tags: tuple[str, ...]
    tokens: int  # what the memory has of them
    synced: bool = False  # a `sync` was reading them


def unfinished_in(memory: Memory) -> list[InterruptedReading]:
    """Return the unfinished readings that left something in the memory, oldest first."""
    jobs = _jobs_in(memory)
    streams: dict[int, list[_core.BlockInfo]] = collections.defaultdict(list)
    for info in sorted(memory.core.blocks.infos() if jobs else [], key=lambda info: info.begin):
        streams[info.stream].append(info)
    found = []
    for stream, job in jobs:
        pieces = [
            (info, min(last, info.end) - max(first, info.begin))
            for first, last in job
            for info in _between(streams[stream], first, last)
        ]
        if pieces:
            told = [(block_of(info), content_in(info.tags)) for info, _ in pieces]
            blocks = [block for block, _ in told]
            sources = tuple(dict.fromkeys(block.source for block in blocks))
            origins = tuple(dict.fromkeys(block.origin for block in blocks if block.origin))
            tags = tuple(dict.fromkeys(tag for block in blocks for tag in block.tags))
            synced = any(content for _, content in told)
            found.append(InterruptedReading(sources, origins, tags, sum(tokens for _, tokens in pieces), synced))
    return found


def _between(blocks: Sequence[_core.BlockInfo], first: int, last: int) -> Iterator[_core.BlockInfo]:
    """Yield those of a stream's blocks, in its order, that have tokens in [first, last)."""
    for info in blocks[bisect.bisect_right(blocks, first, key=lambda info: info.end) :]:
        if info.begin >= last:
            return
        yield info


def _jobs_in(memory: Memory) -> list[tuple[int, list[tuple[int, int]]]]:
    """Return stream and spans of each job in the manifest (`memory/readings.py`); none where it cannot be read."""
    noted = memory.core.manifest().attributes.get("readings") or "{}"
    try:
        jobs: dict[str, list[list[list[int]]]] = json.loads(noted)
        return [
            (int(stream), [_span(memory, int(stream), span) for span in job]) for stream in jobs for job in jobs[stream]
        ]
    except (ValueError, TypeError, LookupError):
        return []


def _span(memory: Memory, stream: int, span: list[Any]) -> tuple[int, int]:
    """Return [first, end) of a span. While its text is being read it has no end yet."""
    return int(span[0]), int(span[1]) if len(span) > 1 else memory.core.blocks.stream_end(stream)
