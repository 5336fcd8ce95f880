"""Nodes and edges that follow from what blocks say of themselves: times, names, sessions.

None of them is stored. They are made from the blocks' times and tags when they are asked for. So they are as durable as
these, right after anything was forgotten, and there in memories of any age.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import hashlib
import itertools
from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple

import everlong._core as _core
from everlong.graph.reserved_tags import event_times, keyphrases_in, nearest_moment, user_tags

# Ids of topics are smaller. All are integers that a double holds, for GraphML's readers and JavaScript.
FIRST_DERIVED: Final = 1 << 40
_FIRST_ENTITY: Final = 1 << 48
_LEVELS: Final = ("%Y-%m-%d", "%Y-%m", "%Y")  # of the timeline: day, month, year
_LEAST_BLOCKS: Final = 2  # a keyphrase in so many blocks is an entity

DerivedKind = Literal["next_session", "previous_session", "happened", "mentions"]


@dataclasses.dataclass(frozen=True, order=True)
class DerivedNode:
    """A stretch of time (level 0 a day, 1 its month, 2 its year), or a name. Times are seconds since 1970."""

    id: int
    kind: Literal["timeline", "entity"]
    level: int
    count: int  # blocks below it
    name: str
    created_at: float  # when the events of its first block happened
    updated_at: float  # the same of its last block


class DerivedEdge(NamedTuple):
    """An edge that follows from what blocks say. None is stored."""

    source: int
    target: int
    kind: DerivedKind
    time: float  # when the block's events happened; between sessions, when the later block was archived


class DerivedGraph(NamedTuple):
    """Nodes by id; edges by source, target and kind."""

    nodes: list[DerivedNode]
    edges: list[DerivedEdge]


def derived_from(blocks: Sequence[_core.BlockInfo]) -> DerivedGraph:
    """Derive days, months, years and names from blocks, and the ways from each stream to the next.

    Blocks are in order of archiving. A block is of the day (UTC) on which its events happened, or on which it was
    archived. An entity is a tag that the caller gave, or one of the tagger's keyphrases that several blocks have: a
    name of two words. Sessions are streams, in the order of their first blocks.
    """
    times = {block.id: _time_of(block) for block in blocks}
    edges = _between_sessions(blocks)
    nodes: list[DerivedNode] = []
    below: dict[int, list[float]] = collections.defaultdict(list)
    days: dict[int, tuple[int, str]] = {}  # id -> level, name
    up: set[tuple[int, int]] = set()
    for id, time in times.items():
        day = nearest_moment(time).date()
        above = _timeline_of(day)
        edges.append(DerivedEdge(id, above[0][0], "happened", time))
        for level, (of, name) in enumerate(above):
            days[of] = level, name
            below[of].append(time)
        up.update((above[level][0], above[level + 1][0]) for level in range(len(above) - 1))
    edges += [DerivedEdge(source, target, "happened", 0) for source, target in up]
    for id, (level, name) in days.items():
        nodes.append(DerivedNode(id, "timeline", level, len(below[id]), name, min(below[id]), max(below[id])))
    mentions = _mentions(blocks)
    for id, (name, of_name) in _with_ids(mentions):
        of_time = [times[block] for block in of_name]
        nodes.append(DerivedNode(id, "entity", 0, len(of_name), name, min(of_time), max(of_time)))
        edges += [DerivedEdge(block, id, "mentions", times[block]) for block in of_name]
    return DerivedGraph(sorted(nodes), sorted(edges))


def _time_of(block: _core.BlockInfo) -> float:
    happened = event_times(block.tags)
    return block.created_at if happened is None else happened


def _timeline_of(day: datetime.date) -> list[tuple[int, str]]:
    """Return ids and names of a day, its month and its year."""
    firsts = (day, day.replace(day=1), day.replace(month=1, day=1))
    return [
        (FIRST_DERIVED + (level << 32) + first.toordinal(), first.strftime(name))
        for level, (first, name) in enumerate(zip(firsts, _LEVELS, strict=True))
    ]


def _mentions(blocks: Iterable[_core.BlockInfo]) -> dict[str, list[int]]:
    given, found = collections.defaultdict(list), collections.defaultdict(list)
    for block in blocks:
        of_caller = dict.fromkeys(user_tags(block.tags))
        for name in of_caller:
            given[name].append(block.id)
        for name in dict.fromkeys(keyphrases_in(block.tags)):
            if " " in name and name not in of_caller:
                found[name].append(block.id)
    for name, of_name in found.items():
        if name in given or len(of_name) >= _LEAST_BLOCKS:
            given[name] = sorted({*given[name], *of_name})
    return given


def _with_ids(mentions: dict[str, list[int]]) -> Iterable[tuple[int, tuple[str, list[int]]]]:
    """Give names their ids: the same in every memory, except where two names of one memory would get the same."""
    taken: set[int] = set()
    for name in sorted(mentions):
        digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        id = _FIRST_ENTITY + int.from_bytes(digest, "little") % _FIRST_ENTITY
        while id in taken:
            id += 1
        taken.add(id)
        yield id, (name, mentions[name])


def _between_sessions(blocks: Sequence[_core.BlockInfo]) -> list[DerivedEdge]:
    ends: dict[int, tuple[_core.BlockInfo, _core.BlockInfo]] = {}  # stream -> its first and last block
    for block in blocks:
        first, last = ends.get(block.stream, (block, block))
        ends[block.stream] = min(first, block, key=_begin), max(last, block, key=_begin)
    sessions = sorted(ends.values(), key=lambda session: session[0].id)
    edges = []
    for (_, last), (first, _) in itertools.pairwise(sessions):
        edges.append(DerivedEdge(last.id, first.id, "next_session", first.created_at))
        edges.append(DerivedEdge(first.id, last.id, "previous_session", first.created_at))
    return edges


def _begin(block: _core.BlockInfo) -> int:
    return block.begin
