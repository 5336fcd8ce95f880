"""A table that a framework keeps with a memory, and the blocks that belong to its rows: both change, or neither."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from typing import Any

from everlong.errors import EverlongError, MemoryNotFoundError
from everlong.generation.memory_model import MemoryModel
from everlong.integrations.exclusive import exclusive_calls
from everlong.memory.where import Where

Rows = list[Any]


class Table:
    """Rows of JSON in a file that belongs to a memory. Thread-safe; a memory has one process that writes."""

    def __init__(self, memory: MemoryModel, file: str) -> None:
        self._memory, self._file = memory, file

    def rows(self) -> Rows:
        """Return the rows as they are now."""
        rows: Rows = json.loads(self._memory.memory.core.file(self._file) or b"[]")
        return rows

    @contextlib.contextmanager
    def change(self) -> Iterator[TableChange]:
        """Wrap one change, from the look at the rows to their writing. No other call of the memory comes in between.

        Where anything fails, the rows stay, and what was read meanwhile is forgotten again. A process that dies leaves
        the rows as they were, or changed; it may leave blocks that no row knows.
        """
        core = self._memory.memory.core
        with exclusive_calls(self._memory):
            before = core.file(self._file) or b"[]"
            change = TableChange(self._memory, json.loads(before))
            try:
                yield change
                core.put_file(self._file, json.dumps(change.rows).encode())
                try:
                    change.forget(change.outdated)
                except BaseException:
                    core.put_file(self._file, before)
                    raise
            except BaseException:
                with contextlib.suppress(EverlongError):  # what went wrong first is what the caller hears of
                    change.forget(change.made)
                raise


class TableChange:
    """One change: the rows, which become what they are at its end, and what is read and forgotten with it."""

    def __init__(self, memory: MemoryModel, rows: Rows) -> None:
        self._memory, self.rows = memory, rows
        self.made: set[int] = set()  # blocks that were read for it
        self.outdated: set[int] = set()  # blocks that are forgotten at its end

    def read(self, text: str, source: str, origin: str, *, again: bool = False) -> None:
        """Read a text, if it has any words, as `MemoryModel.read` does."""
        if not text.strip():
            return
        before = self._blocks(origin)
        try:
            self._memory.read(text, source=source, origin=origin, again=again)
        finally:  # a reading that is cut short leaves what it had read
            self.made |= self._blocks(origin) - before

    def replace(self, origin: str) -> None:
        """Forget, at the end of the change, what was read from there before."""
        self.outdated |= self._blocks(origin) - self.made

    def forget(self, blocks: Iterable[int]) -> None:
        """Forget blocks, all or none, those that are there."""
        there = [block for block in blocks if self._is_there(block)]
        if there:
            self._memory.memory.forget(there)

    def _is_there(self, block: int) -> bool:
        try:
            self._memory.memory.core.blocks.info(block)
        except MemoryNotFoundError:
            return False
        return True

    def _blocks(self, origin: str) -> set[int]:
        return {block.id for block in self._memory.memory.blocks(where=Where(origin=origin))}
