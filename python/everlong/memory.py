"""A memory: one conversation's or library's blocks and their index, in RAM or in one folder."""

from __future__ import annotations

import dataclasses
import datetime
import os
from collections.abc import Iterable
from types import TracebackType

from everlong import _core
from everlong.fingerprint import Fingerprint


@dataclasses.dataclass(frozen=True)
class Block:
    """A closed span of the stream: the unit of archive, naming and citation."""

    id: int
    span: tuple[int, int]  # tokens of the stream
    source: str
    created_at: datetime.datetime  # UTC
    tags: tuple[str, ...]
    payload_bytes: int


@dataclasses.dataclass(frozen=True)
class MemoryStats:
    blocks: int
    pages: int
    tokens: int
    payload_bytes: int
    disk_bytes: int  # 0 for a memory in RAM


class Memory:
    """Store and index without a model. Thread-safe as its core is (cpp/include/everlong/os/memory.h)."""

    def __init__(self, core: _core.Memory, path: str | None) -> None:
        self.core = core
        self.path = path
        self._files: dict[str, bytes] = {}  # of a memory in RAM

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str] | None,
        *,
        create: _core.Manifest | None = None,
        read_only: bool = False,
    ) -> Memory:
        """The memory in folder `path`; with `create`, a new one by that manifest where there is none yet.

        `path=None` with `create` keeps all in RAM. Raises MemoryNotFoundError, CorruptMemoryError, MemoryBusyError,
        NewerFormatError.
        """
        folder = None if path is None else os.fspath(path)
        if folder is None:
            if create is None:
                raise ValueError("path=None makes a new memory in RAM: it needs create=")
            return cls(_core.Memory.create(None, create), None)
        exists = os.path.exists(os.path.join(folder, "manifest.json"))
        if create is not None and not exists:
            return cls(_core.Memory.create(folder, create), folder)
        return cls(_core.Memory.open(folder, read_only), folder)

    def check(self, expected: Fingerprint) -> None:
        """Raise ModelMismatchError, naming what differs, unless this memory belongs to that model."""
        _core.check_fingerprint(
            self.core.manifest(), weights=expected.weights, rope=expected.rope, tokenizer=expected.tokenizer
        )

    def blocks(self, source: str | None = None) -> list[Block]:
        """All blocks in order of archiving, or those of one source."""
        return [
            Block(
                info.id,
                (info.begin, info.end),
                info.source,
                datetime.datetime.fromtimestamp(info.created_at, datetime.timezone.utc),
                tuple(info.tags),
                info.payload_bytes,
            )
            for info in self.core.blocks()
            if source is None or info.source == source
        ]

    def forget(self, block_ids: Iterable[int] | None = None, *, source: str | None = None) -> int:
        """Forget blocks by id, or all of a source; return how many. They are gone from every later read and search."""
        if (block_ids is None) == (source is None):
            raise ValueError("name either block_ids or source")
        ids = list(block_ids) if block_ids is not None else [block.id for block in self.blocks(source)]
        if ids:
            self.core.forget(ids)
        return len(ids)

    # --- files of the host's own, beside the store's

    def write_file(self, name: str, data: bytes) -> None:
        """Keep `data` under `name`; durable, and whole or not at all."""
        if self.path is None:
            self._files[name] = data
            return
        target = os.path.join(self.path, name)
        with open(target + ".new", "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(target + ".new", target)

    def read_file(self, name: str) -> bytes | None:
        """What `write_file` kept, None when there is nothing."""
        if self.path is None:
            return self._files.get(name)
        try:
            with open(os.path.join(self.path, name), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def stats(self) -> MemoryStats:
        core = self.core.stats()
        return MemoryStats(core.blocks, core.pages, core.tokens, core.payload_bytes, core.disk_bytes)

    def close(self) -> None:
        """Release files and lock. Closing twice does nothing."""
        self.core.close()

    def __enter__(self) -> Memory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
