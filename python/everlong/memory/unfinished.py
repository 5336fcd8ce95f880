"""Readings of a memory that were cut short, or are under way in another process."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from everlong.memory.memory import Memory


@dataclasses.dataclass(frozen=True)
class Unfinished:
    """One text, or several that were to be read one after the other. The last of them was not read to its end."""

    sources: tuple[str, ...]
    origins: tuple[str, ...]  # paths of their files; those without a file are left out
    tags: tuple[str, ...]
    tokens: int  # what the memory has of them


def unfinished_in(memory: Memory) -> list[Unfinished]:
    """Return the unfinished readings that left something in the memory, oldest first."""
    blocks = memory.core.blocks.infos()
    named = {block.id: block for block in memory.blocks()}
    found = []
    for stream, job in _jobs_in(memory):
        pieces = [
            (named[block.id], min(last, block.end) - max(first, block.begin))
            for first, last in job
            for block in blocks
            if block.stream == stream and max(first, block.begin) < min(last, block.end)
        ]
        if pieces:
            sources = tuple(dict.fromkeys(block.source for block, _ in pieces))
            origins = tuple(dict.fromkeys(block.origin for block, _ in pieces if block.origin))
            tags = tuple(dict.fromkeys(tag for block, _ in pieces for tag in block.tags))
            found.append(Unfinished(sources, origins, tags, sum(tokens for _, tokens in pieces)))
    return found


def _jobs_in(memory: Memory) -> list[tuple[int, list[tuple[int, int]]]]:
    """Return stream and spans of each job in the manifest (`memory/readings.py`); none where it cannot be read."""
    noted = memory.core.manifest().attributes.get("readings") or "{}"
    try:
        jobs: dict[str, list[list[list[int]]]] = json.loads(noted)
        return [
            (int(stream), [_span(memory, int(stream), span) for span in job]) for stream in jobs for job in jobs[stream]
        ]
    except (ValueError, TypeError, AttributeError, KeyError):
        return []


def _span(memory: Memory, stream: int, span: list[Any]) -> tuple[int, int]:
    """Return [first, end) of a span. While its text is being read it has no end yet."""
    return int(span[0]), int(span[1]) if len(span) > 1 else memory.core.blocks.stream_end(stream)
