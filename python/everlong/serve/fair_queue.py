"""A bounded queue that serves keys in turn, and of each key its memories in turn."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class QueueItem(Protocol):
    """What can wait in the queue."""

    @property
    def key(self) -> str:
        """Whose it is."""

    @property
    def memory(self) -> str:
        """What it is about."""


Item = TypeVar("Item", bound=QueueItem)


class FairQueue(Generic[Item]):
    """Whoever asks much waits for his own questions, not others. Thread-safe."""

    def __init__(self, most: int, most_each: int) -> None:
        """`most`: how many may wait in all; `most_each`: of one key."""
        self._most, self._most_each = most, most_each
        self._queues: dict[
            str, dict[str, collections.deque[Item]]
        ] = {}  # by key, then by memory, whose turn it is first
        self._changed = threading.Condition()
        self._count = 0
        self._closed = False

    def __len__(self) -> int:
        return self._count

    def has_capacity(self, key: str) -> bool:
        """Return whether one more of that key may wait."""
        with self._changed:
            waiting = sum(map(len, self._queues.get(key, {}).values()))
            return not self._closed and self._count < self._most and waiting < self._most_each

    def put(self, one: Item, *, anyway: bool = False, first: bool = False) -> bool:
        """Let it wait. False where too many do, or the queue is closed.

        `anyway`: however many do. `first`: in front of the others of its key and memory.
        """
        with self._changed:
            if self._closed or not (anyway or self.has_capacity(one.key)):
                return False
            line = self._queues.setdefault(one.key, {}).setdefault(one.memory, collections.deque())
            line.insert(0 if first else len(line), one)
            self._count += 1
            self._changed.notify()
            return True

    def remove(self, one: Item) -> bool:
        """Let it wait no longer. Return whether it did."""
        with self._changed:
            lines = self._queues.get(one.key, {})
            line = lines.get(one.memory, collections.deque())
            if one not in line:
                return False
            line.remove(one)
            self._count -= 1
            if not line:
                del lines[one.memory]
            if not lines:
                del self._queues[one.key]
            return True

    def take(self, *, wait: float, ready: Callable[[Item], bool] = lambda one: True) -> Item | None:
        """Take the next one that is `ready`, or wait so many seconds for one. None where none came, or on `wake`."""
        with self._changed:
            found = self._next(ready)
            if found is None and wait > 0 and not self._closed:
                self._changed.wait(wait)
                found = self._next(ready)
            return found

    def close(self) -> list[Item]:
        """Take nobody any more. Return who waited."""
        with self._changed:
            self._closed = True
            left = [one for lines in self._queues.values() for line in lines.values() for one in line]
            self._queues.clear()
            self._count = 0
            self._changed.notify_all()
            return left

    def wake(self) -> None:
        """Let who waits in `take` look again."""
        with self._changed:
            self._changed.notify_all()

    def _next(self, ready: Callable[[Item], bool]) -> Item | None:
        for key, lines in list(self._queues.items()):
            for memory, line in list(lines.items()):
                if not ready(line[0]):
                    continue
                one = line.popleft()
                self._count -= 1
                del lines[memory], self._queues[key]  # behind the others
                if line:
                    lines[memory] = line
                if lines:
                    self._queues[key] = lines
                return one
        return None
