"""A memory's graph: nodes, their neighbours, ways between them."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import os
from collections.abc import Collection
from typing import TYPE_CHECKING, Final, Literal, cast

import numpy as np
import numpy.typing as npt

import everlong._core as _core
from everlong.errors import EverlongError
from everlong.graph.derived import FIRST_DERIVED, DerivedEdge, DerivedGraph, DerivedNode, derived_from
from everlong.graph.naming import names_of
from everlong.graph.reserved_tags import keyphrases_in, nearest_moment
from everlong.paths import absolute

if TYPE_CHECKING:
    import networkx

NodeKind = Literal["block", "topic", "timeline", "entity"]
EdgeKind = Literal["next", "previous", "belongs_to", "next_session", "previous_session", "happened", "mentions"]
_STORED: Final = ("next", "previous", "belongs_to")


@dataclasses.dataclass(frozen=True)
class Node:
    """A block, or what stands over several blocks. A block's node has the block's id.

    Over several blocks stand topics, stretches of the timeline and entities. A topic's vector is the mean of its
    blocks'. A stretch is a day, month or year (UTC). An entity is named by its blocks.
    """

    id: int
    kind: NodeKind
    level: int  # 0 right over blocks, 1 over topics or days of level 0 ...
    count: int  # blocks below it; 0 for a block
    created_at: datetime.datetime  # UTC; of its first block; for times and entities, when its events happened
    updated_at: datetime.datetime  # UTC; of its newest block, likewise
    vector: npt.NDArray[np.float32] = dataclasses.field(repr=False, compare=False)  # [dimension]; empty without
    name: str = ""  # of times and entities: "2024-05-03", "2024-05", "2024"; what blocks call it


@dataclasses.dataclass(frozen=True)
class Edge:
    """From one node to another.

    `next` and `previous` lead through a stream's time. `next_session` and `previous_session` lead from the last block
    of a stream to the first of the stream that was begun next, and back. `belongs_to` leads up to a topic. `happened`
    leads to a day, from there to its month and year. `mentions` leads from a block to an entity.
    """

    source: int
    target: int
    kind: EdgeKind
    weight: float
    time: (
        datetime.datetime
    )  # UTC; of a way through time when the later block was archived; when a block happened; or 1970


class MemoryGraph:
    """The graph of an open memory, as it is committed when it is asked: `memory.graph`.

    It grows where a MemoryModel reads with `archive.graph`, and is empty elsewhere. Blocks and topics are stored, with
    the edges between them. Times, entities and ways between sessions are made from the blocks each time they are asked
    for, which takes as long as `memory.blocks()`. Thread-safe. Every call raises CorruptMemoryError for a damaged row,
    ClosedError once the memory is closed.
    """

    def __init__(self, core: _core.Memory) -> None:
        self._core = core

    def __len__(self) -> int:
        """Return how many nodes there are."""
        stored = self._core.upkeep.stats().graph_nodes
        return stored and stored + len(self._derived().nodes)

    def nodes(self, kind: NodeKind | None = None) -> list[Node]:
        """Return all nodes, or those of a kind, by id."""
        found = self._core.graph.read()[0] if kind is None else self._core.graph.nodes(kind)
        nodes = list(map(_node_of, found))
        if kind in (None, "timeline", "entity"):
            nodes += [_derived_node(node) for node in self._derived().nodes if kind in (None, node.kind)]
        return nodes

    def node(self, id: int) -> Node:
        """Return the node of that id. MemoryNotFoundError where there is none."""
        if id >= FIRST_DERIVED:
            for node in self._derived().nodes:
                if node.id == id:
                    return _derived_node(node)
        return _node_of(self._core.graph.node(id))

    def edges(self) -> list[Edge]:
        """Return all edges, by source, target and kind."""
        edges = [*map(_edge_of, self._core.graph.read()[1]), *map(_derived_edge, self._derived().edges)]
        return sorted(edges, key=lambda edge: (edge.source, edge.target))

    def neighbours(self, id: int, kind: EdgeKind | None = None, *, incoming: bool = False) -> list[int]:
        """Return ids of the nodes that a node's edges lead to, of a kind or of any; `incoming`: that lead to it.

        `neighbours(block, "belongs_to")` are its topics. `neighbours(topic, "belongs_to", incoming=True)` is what
        belongs to a topic. MemoryNotFoundError where there is no such node.
        """
        self.node(id)
        near, far = ("target", "source") if incoming else ("source", "target")
        edges: list[_core.GraphEdge | DerivedEdge] = [*self._core.graph.edges(id)]
        if kind not in _STORED:
            edges += self._derived().edges
        named = (edge for edge in edges if getattr(edge, near) == id and kind in (None, edge.kind))
        return sorted({getattr(edge, far) for edge in named})

    def names(self) -> dict[int, str]:
        """Return what every topic is about, by id: phrases of its blocks that other topics of its level lack.

        Phrases are what a tagger said (`archive.tagger`). Where none did, it is the source of most of its blocks.
        """
        nodes, edges = self._core.graph.read()
        blocks = {block.id: block for block in self._core.blocks.infos()}
        below: dict[int, list[int]] = {}
        for edge in edges:
            if edge.kind == "belongs_to":
                below.setdefault(edge.target, []).append(edge.source)

        def blocks_of(id: int) -> list[_core.BlockInfo]:
            return [blocks[id]] if id in blocks else [block for one in below.get(id, ()) for block in blocks_of(one)]

        names: dict[int, str] = {}
        for level in sorted({node.level for node in nodes if node.kind == "topic"}):
            of_topic = {node.id: blocks_of(node.id) for node in nodes if node.kind == "topic" and node.level == level}
            names |= names_of({topic: [keyphrases_in(block.tags) for block in of] for topic, of in of_topic.items()})
            for topic, of in of_topic.items():
                names[topic] = names[topic] or _source_of(of)
        return names

    def path(self, source: int, target: int, *, kinds: Collection[EdgeKind] = _STORED) -> list[int]:
        """Return ids from one node to another over the fewest edges, in either direction; empty where there is no way.

        Of several ways it is the one with the smallest ids. `kinds` are the edges that it may take, by default those
        that are stored, because over a day any two of its blocks are near. MemoryNotFoundError where there is no such
        node.
        """
        if set(kinds) == set(_STORED):
            return self._core.graph.path(source, target)
        self.node(source), self.node(target)
        beside: dict[int, set[int]] = collections.defaultdict(set)
        for edge in self.edges():
            if edge.kind in kinds:
                beside[edge.source].add(edge.target)
                beside[edge.target].add(edge.source)
        onward, reached = {target: target}, [target]
        while reached and source not in onward:
            farther = []
            for id in reached:  # ascending: the smallest comes first
                for other in beside[id]:
                    if other not in onward:
                        onward[other] = id
                        farther.append(other)
            reached = sorted(farther)
        if source not in onward:
            return []
        way = [source]
        while way[-1] != target:
            way.append(onward[way[-1]])
        return way

    def to_networkx(self) -> networkx.MultiDiGraph:
        """Return all of it as a networkx graph. An edge's key is its kind. Vectors are left out. Extra `graph`.

        Nodes have the attributes kind, level, count, name, created_at and updated_at. Blocks have stream, begin, end,
        source and role, too. Edges have kind, weight and time. Times are texts in ISO 8601, so that every format takes
        them.
        """
        try:
            import networkx
        except ImportError:
            raise EverlongError('networkx is not installed: pip install "everlong[graph]"') from None
        graph = networkx.MultiDiGraph()
        blocks = {block.id: block for block in self._core.blocks.infos()}
        for node in self.nodes():
            attributes: dict[str, str | int] = {"kind": node.kind, "level": node.level, "count": node.count}
            attributes["name"] = node.name
            attributes |= {"created_at": node.created_at.isoformat(), "updated_at": node.updated_at.isoformat()}
            if node.kind == "block" and node.id in blocks:
                block = blocks[node.id]
                attributes |= {"stream": block.stream, "begin": block.begin, "end": block.end}
                attributes |= {"source": block.source, "role": block.role}
            graph.add_node(node.id, **attributes)
        for edge in self.edges():
            graph.add_edge(
                edge.source, edge.target, key=edge.kind, kind=edge.kind, weight=edge.weight, time=edge.time.isoformat()
            )
        return graph

    def write_graphml(self, file: str | os.PathLike[str]) -> None:
        """Write the same as a GraphML file, which Gephi, yEd and Cytoscape open."""
        graph = self.to_networkx()
        import networkx

        networkx.write_graphml_xml(graph, absolute(file))  # the one by lxml refuses control characters

    def _derived(self) -> DerivedGraph:
        """Derive from the blocks that have a node."""
        nodes = {node.id for node in self._core.graph.nodes("block")}
        return derived_from([block for block in self._core.blocks.infos() if block.id in nodes])


def _node_of(core: _core.GraphNode) -> Node:
    return Node(
        id=core.id,
        kind=cast(NodeKind, core.kind),
        level=core.level,
        count=core.count,
        created_at=_time(core.created_at),
        updated_at=_time(core.updated_at),
        vector=core.vector,
    )


def _edge_of(core: _core.GraphEdge) -> Edge:
    return Edge(core.source, core.target, cast(EdgeKind, core.kind), core.weight, _time(core.time))


def _source_of(blocks: list[_core.BlockInfo]) -> str:
    """Return the source of most of these. Sources are few: names of books or files."""
    counts = collections.Counter(block.source or "conversation" for block in blocks)
    return counts.most_common(1)[0][0] if counts else ""


def _derived_node(node: DerivedNode) -> Node:
    return Node(
        id=node.id,
        kind=node.kind,
        level=node.level,
        count=node.count,
        created_at=_time(node.created_at),
        updated_at=_time(node.updated_at),
        vector=np.empty(0, dtype=np.float32),
        name=node.name,
    )


def _derived_edge(edge: DerivedEdge) -> Edge:
    return Edge(edge.source, edge.target, edge.kind, 1.0, _time(edge.time))


def _time(seconds: float) -> datetime.datetime:
    return nearest_moment(seconds)
