"""A memory without a model: its blocks, where and when they stand, the readings that are under way."""

from typing import Final

from everlong.memory.memory import Memory
from everlong.memory.recoding import RecodingPlan
from everlong.memory.records import Block, Damage, MemoryStats, VerifyReport

MAY_IMPORT: Final = ("_core", "errors", "graph", "paths", "text")

__all__ = ["Block", "Damage", "Memory", "MemoryStats", "RecodingPlan", "VerifyReport"]
