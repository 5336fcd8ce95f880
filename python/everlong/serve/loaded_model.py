"""The one model of a service, and how memories are opened with it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from everlong.config import MemoryConfig
from everlong.generation.memory_model import MemoryModel
from everlong.memory import Memory
from everlong.models.pack import pack_for
from everlong.text.own_tokenizer import own_tokenizer


@dataclasses.dataclass(frozen=True)
class LoadedModel:
    """A model with its tokenizer. Each thread that uses it has a tokenizer of its own (`for_another_thread`)."""

    name: str
    model: Any
    tokenizer: Any
    config: MemoryConfig | None = None  # None: what fits the model
    pack: str | None = "auto"  # as in `MemoryModel`

    def __post_init__(self) -> None:
        """Look for a pack once, not whenever a memory is opened."""
        if self.pack == "auto" and pack_for(self.model) is None:
            object.__setattr__(self, "pack", None)

    def with_own_tokenizer(self) -> LoadedModel:
        """Return it with a tokenizer of its own: a fast tokenizer is not made for two threads."""
        return dataclasses.replace(self, tokenizer=own_tokenizer(self.tokenizer))

    def open_memory(
        self, folder: Path, *, read_only: bool = False, host_bytes: int | None = None, make: bool = False
    ) -> MemoryModel:
        """Open the memory in a folder; `make` one where there is none. `close_with_memory` closes it.

        Errors as in `MemoryModel`.
        """
        if make and not Memory.exists(folder):
            return MemoryModel(self.model, self.tokenizer, folder, self.config, pack=self.pack)
        memory = Memory.open(folder, read_only=read_only, host_bytes=host_bytes)
        try:
            return MemoryModel(self.model, self.tokenizer, memory, self.config, pack=self.pack)
        except BaseException:
            memory.close()
            raise

    @contextlib.contextmanager
    def opened_memory(self, folder: Path, host_bytes: int | None = None, *, make: bool = True) -> Iterator[MemoryModel]:
        """Open a memory to write, and close it at the end. `make` one where there is none."""
        mm = self.open_memory(folder, host_bytes=host_bytes, make=make)
        try:
            yield mm
        finally:
            close_with_memory(mm)


def close_with_memory(mm: MemoryModel) -> None:
    """Close a MemoryModel, and the memory that was opened for it."""
    try:
        mm.close()
    finally:
        mm.memory.close()
