"""Blocks on their way from the frame into the memory, while the frame reads on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

# One is copied out of a GPU while the one before is stored. Each takes its bytes on the device.
_MOST = 2


class BlocksOnTheirWay:
    """Blocks that a thread stores, in order. For the frame's thread alone."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Future[int], Callable[[int], None]]] = deque()
        self._thread: ThreadPoolExecutor | None = None

    def send(self, store: Callable[[], int], arrived: Callable[[int], None]) -> list[BaseException]:
        """Store a block in the thread. Return the errors of earlier blocks that the memory refused.

        `store` waits for the block's bytes, hands them to the memory and returns the block's id. The frame's thread
        calls `arrived` with that id, in `arrive` or in a later `send`.
        """
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "everlong blocks")
        failed = self.arrive(_MOST - 1)
        self._waiting.append((self._thread.submit(store), arrived))
        return failed

    def arrive(self, most: int = 0) -> list[BaseException]:
        """Wait until at most so many blocks are on their way. Return the errors of the others."""
        failed: list[BaseException] = []
        while len(self._waiting) > most:
            stored, arrived = self._waiting.popleft()
            try:
                arrived(stored.result())
            except BaseException as error:
                failed.append(error)
        return failed

    def close(self) -> None:
        """Wait for all blocks, and end the thread."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
