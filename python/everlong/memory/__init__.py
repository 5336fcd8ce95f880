"""A memory without a model: its blocks, where and when they stand, and the readings that are under way."""

from everlong.memory.memory import Block, Damage, Memory, MemoryStats, VerifyReport

__all__ = ["Block", "Damage", "Memory", "MemoryStats", "VerifyReport"]
