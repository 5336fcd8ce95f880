"""A block on its way from the frame into the memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future


class BlockOnItsWay:
    """A block that is stored while the frame reads on, or at once.

    `store` waits for the block's bytes, which may still be copied out of a GPU, hands them to the memory and returns
    the block's id. `arrived` is called by the frame's thread with that id, once, before the next block sets out.
    """

    def __init__(self, store: Callable[[], int], arrived: Callable[[int], None], *, beside: bool) -> None:
        self._arrived = arrived
        self._stored: Future[int] = Future()
        if beside:
            threading.Thread(target=self._run, args=(store,), name="everlong block").start()
        else:
            self._run(store)

    def _run(self, store: Callable[[], int]) -> None:
        try:
            self._stored.set_result(store())
        except BaseException as error:
            self._stored.set_exception(error)

    def arrive(self) -> None:
        """Return when the block is in the memory, and whoever wants to know was told. Raises what storing it raised."""
        self._arrived(self._stored.result())
