"""The graph of a memory: blocks in time, topics over them, times and names; exports to networkx and GraphML."""

from typing import Final

from everlong.graph.graph import Edge, MemoryGraph, Node

MAY_IMPORT: Final = ("_core", "errors", "paths")

__all__ = ["Edge", "MemoryGraph", "Node"]
