"""How many may work at once, of all callers and of each: others wait, and hold no thread."""

from __future__ import annotations

import asyncio
import collections
import contextlib
from collections.abc import AsyncIterator

from everlong.service_data.errors import too_many

_MOST_WAITING = 64  # of one key


class FairSemaphore:
    """Places that are handed from key to key in turn. For the event loop alone."""

    def __init__(self, most: int, most_each: int) -> None:
        """`most`: at work at once; `most_each`: of one key."""
        self._most, self._most_each = most, most_each
        self._active: collections.Counter[str] = collections.Counter()
        self._waiting: dict[str, collections.deque[asyncio.Future[None]]] = {}  # whose turn it is first

    @contextlib.asynccontextmanager
    async def acquire(self, key: str) -> AsyncIterator[None]:
        """Wait for a turn of the key. ApiError 429 where too many of it wait."""
        if len(self._waiting.get(key, ())) >= _MOST_WAITING:
            raise too_many("too many requests of this kind wait", 5, "queue_full")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, collections.deque()).append(turn)
        self._wake_next()
        try:
            await turn
            yield
        finally:
            if turn.cancelled():  # it waited still
                self._waiting[key].remove(turn)
                if not self._waiting[key]:
                    del self._waiting[key]
            else:
                self._active[key] -= 1
                if not self._active[key]:
                    del self._active[key]
                self._wake_next()

    def _wake_next(self) -> None:
        for key in list(self._waiting):
            if self._active.total() >= self._most:
                return
            if self._active[key] < self._most_each:
                turns = self._waiting.pop(key)
                turns.popleft().set_result(None)
                self._active[key] += 1
                if turns:
                    self._waiting[key] = turns  # behind the others
