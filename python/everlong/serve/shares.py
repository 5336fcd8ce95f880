"""How many may work at once, of all callers and of each: others wait, and hold no thread."""

from __future__ import annotations

import asyncio
import collections
import contextlib
from collections.abc import AsyncIterator

from everlong.serve.errors import too_many

_MOST_WAITING = 64  # of one key


class Shares:
    """For the event loop alone."""

    def __init__(self, most: int, most_each: int) -> None:
        """`most`: at work at once; `most_each`: of one key."""
        self._most, self._most_each = most, most_each
        self._at_work: collections.Counter[str] = collections.Counter()
        self._waiting: collections.Counter[str] = collections.Counter()
        self._changed = asyncio.Condition()

    @contextlib.asynccontextmanager
    async def taken(self, key: str) -> AsyncIterator[None]:
        """Wait for a turn of the key. ApiError 429 where too many of it wait."""
        if self._waiting[key] >= _MOST_WAITING:
            raise too_many("too many requests of this kind wait", 5, "queue_full")
        self._waiting[key] += 1
        try:
            async with self._changed:
                await self._changed.wait_for(lambda: self._is_free(key))
                self._at_work[key] += 1
        finally:
            self._left(self._waiting, key)
        try:
            yield
        finally:
            self._left(self._at_work, key)
            async with self._changed:
                self._changed.notify_all()

    def _is_free(self, key: str) -> bool:
        return self._at_work.total() < self._most and self._at_work[key] < self._most_each

    @staticmethod
    def _left(count: collections.Counter[str], key: str) -> None:
        count[key] -= 1
        if count[key] <= 0:
            del count[key]
