"""Blocks on their way from the frame into the memory, while the frame reads on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

# One is copied out of a GPU while the one before is stored: each takes its bytes on the device.
_MOST = 2


class BlocksOnTheirWay:
    """Blocks that a thread stores, in order. Used by the frame's thread alone."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Future[int], Callable[[int], None]]] = deque()
        self._thread: ThreadPoolExecutor | None = None

    def send(self, store: Callable[[], int], arrived: Callable[[int], None]) -> list[BaseException]:
        """`store` waits for a block's bytes, hands them to the memory and returns the block's id.

        `arrived` is called with that by the frame's thread, in `arrive` or a later `send`. The result is what the
        memory refused of earlier blocks.
        """
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "everlong blocks")
        failed = self.arrive(_MOST - 1)
        self._waiting.append((self._thread.submit(store), arrived))
        return failed

    def arrive(self, most: int = 0) -> list[BaseException]:
        """Return when at most so many are still on their way; the result is what was raised for the others."""
        failed: list[BaseException] = []
        while len(self._waiting) > most:
            stored, arrived = self._waiting.popleft()
            try:
                arrived(stored.result())
            except BaseException as error:
                failed.append(error)
        return failed

    def close(self) -> None:
        """Wait for all of them, and end their thread."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
