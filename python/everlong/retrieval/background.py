"""Work on what a memory lacks, in a thread of its own, off the path of reading."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable

import everlong._core as _core
from everlong.errors import EverlongError

_LOGGER = logging.getLogger("everlong")

_SOON = 0.2  # waits of fewer seconds are not logged


def warn_missing(core: _core.Memory, blocks: int, what: str) -> None:
    """Log that blocks of a memory that was opened for reading lack something, of `what`: nobody makes it for them."""
    if blocks:
        said = "%d of %d blocks have nothing of the part %s, and are not found by it: open the memory once to write"
        _LOGGER.warning(said, blocks, core.upkeep.stats().blocks, what)


def warn_waiting(core: _core.Memory, blocks: int, what: str) -> None:
    """Log that so many blocks are not found by `what` yet, because it is made while questions are answered."""
    if blocks:
        said = "%d of %d blocks have nothing of the part %s yet, and are not found by it until that is made"
        _LOGGER.warning(said, blocks, core.upkeep.stats().blocks, what)


class Background:
    """Calls `work` whenever there is something new, one call at a time, until it is closed.

    `work(closed)` does all there is to do. It asks `closed()` on its way, and returns early where that is True. Its
    error is raised by the next `settle`; what comes next is another attempt. `doing` says in a sentence what a wait is
    for ("the newest pages are encoded"). The thread ends with `close`. Without `close` it ends when nothing refers to
    this any more, or the interpreter ends. So `work` must not refer to this.
    """

    def __init__(self, work: Callable[[Callable[[], bool]], None], *, name: str, doing: str, failed: str) -> None:
        self._worker = _Worker(work, name, doing, failed)
        self._closed = weakref.finalize(self, self._worker.close)

    def wake(self) -> None:
        """Say that there is something new."""
        self._worker.wake()

    def settle(self) -> None:
        """Return once all that is new by now was worked on. Raise what went wrong, once."""
        self._worker.settle()

    def close(self) -> None:
        """End the thread. What is not done yet is done when the memory is opened next. Twice does nothing."""
        self._closed()


class _Worker:
    """The thread of a Background, to which it does not refer."""

    def __init__(self, work: Callable[[Callable[[], bool]], None], name: str, doing: str, failed: str) -> None:
        self._work = work
        self._doing = doing
        self._failing = failed
        self._changed = threading.Condition()
        self._wanted = 0  # how often there was something new
        self._done = 0  # up to which of these everything was tried
        self._closed = False
        self._failed: BaseException | None = None  # the last of these
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        with self._changed:
            self._wanted += 1
            self._changed.notify_all()

    def settle(self) -> None:
        self.wake()
        with self._changed:
            wanted, started = self._wanted, time.monotonic()
            # When all is done the last request returns at once, and no wait is logged.
            if not self._changed.wait_for(lambda: self._done >= wanted or self._closed, _SOON):
                _LOGGER.info("waiting until %s", self._doing)
                self._changed.wait_for(lambda: self._done >= wanted or self._closed)
                _LOGGER.info("waited for %.1f s", time.monotonic() - started)
            failed, self._failed = self._failed, None
        if failed is not None:
            raise EverlongError(f"{self._failing}: {failed}") from failed

    def close(self) -> None:
        if os.getpid() != self._pid:  # a fork has the lock as it was, and not the thread
            return
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:  # the thread itself may be the one that collects garbage
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted > self._done or self._closed)
                wanted = self._wanted
                if self._closed:
                    return
            failed: BaseException | None = None
            try:
                self._work(lambda: self._closed)
            except BaseException as error:  # raised to whoever waits; what comes next is another attempt
                failed = error
            with self._changed:
                self._done, self._failed = wanted, failed
                self._changed.notify_all()
