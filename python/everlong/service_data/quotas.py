"""What a key may still have: tokens of this minute, and bytes on disk, of all that is there for it."""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Iterator

from everlong.service_data.errors import too_many
from everlong.service_data.keys import Key, Keys
from everlong.service_data.memory_registry import MemoryRegistry
from everlong.service_data.spool import Spool
from everlong.service_data.stored_responses import StoredResponses

_COPIES_EACH = 2  # copies of memories that are sent to a key at once


class Quotas:
    """Asked before the work is done. Thread-safe."""

    def __init__(self, keys: Keys, registry: MemoryRegistry, spool: Spool, kept: StoredResponses) -> None:
        self._keys, self._registry, self._spool, self._kept = keys, registry, spool, kept
        self._by_name = {key.name: key for key in keys.all}
        self._copies: dict[str, list[int]] = collections.defaultdict(list)  # bytes of those being sent, by key
        self._lock = threading.Lock()

    def has_tokens(self, key: str) -> bool:
        """Return whether a key has tokens left in this minute. One that is not known any more has."""
        return key not in self._by_name or self._keys.has_tokens(self._by_name[key])

    def count(self, key: str, tokens: int) -> None:
        """Count tokens that were read or generated for a key."""
        if key in self._by_name:
            self._keys.count(self._by_name[key], tokens)

    def bytes_left(self, key: str) -> int | None:
        """Return how many bytes a key may still have on disk; None: any number.

        Those are the blocks that it wrote, in all memories that it sees, its texts that are not read yet, and its kept
        answers.
        """
        found = self._by_name.get(key)
        if found is None or found.max_bytes is None:
            return None
        used = self._spool.bytes_of(key) + self._kept.bytes_of(key)
        for name in self._registry.names():
            if found.may_see(name):
                with self._registry.open_read_only(name) as memory:
                    used += sum(block.payload_bytes for block in memory.blocks(tag=found.tag))
        return found.max_bytes - used

    def require_bytes(self, key: Key, more: int = 0) -> None:
        """Raise ApiError 429 where a key has more bytes on disk than it may, or would have with `more`.

        Texts that are being sent count already.
        """
        left = self.bytes_left(key.name)
        if left is not None and more > left:
            raise too_many(f"the key has its {key.max_bytes:,} bytes on disk: forget something", 60, "quota_exceeded")

    @contextlib.contextmanager
    def copy(self, key: Key, size: int) -> Iterator[None]:
        """Count a copy of `size` bytes as the key's while it is on disk. ApiError 429 where it may not be.

        Copies are counted by themselves: as many bytes as a key may have, it may also have copied at once.
        """
        with self._lock:
            copies = self._copies[key.name]
            if len(copies) >= _COPIES_EACH:
                raise too_many("the key's earlier exports are being sent still", 10, "too_many_exports")
            if key.max_bytes is not None and sum(copies) + size > key.max_bytes:
                raise too_many(f"the copy has {size:,} bytes: the key may have {key.max_bytes:,}", 60, "quota_exceeded")
            copies.append(size)
        try:
            yield
        finally:
            with self._lock:
                copies.remove(size)
