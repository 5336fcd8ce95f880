"""Copies of memories that are being made or sent: they end when something is forgotten."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import threading
from collections.abc import Iterator

import anyio


@dataclasses.dataclass(eq=False)
class _Copy:
    memory: str
    loop: asyncio.AbstractEventLoop
    scope: anyio.CancelScope
    ended: concurrent.futures.Future[None] = dataclasses.field(default_factory=concurrent.futures.Future)


class ExportsInProgress:
    """Thread-safe."""

    def __init__(self) -> None:
        self._copies: set[_Copy] = set()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def of(self, memory: str) -> Iterator[anyio.CancelScope]:
        """Wrap the making and sending of a copy, and its removal. What is within the scope may be cancelled."""
        copy = _Copy(memory, asyncio.get_running_loop(), anyio.CancelScope())
        with self._lock:
            self._copies.add(copy)
        try:
            yield copy.scope
        finally:
            with self._lock:
                self._copies.remove(copy)
            copy.ended.set_result(None)

    def end(self, memory: str) -> list[concurrent.futures.Future[None]]:
        """End the copies of a memory. Return what is done when none of them is on the disk."""
        with self._lock:
            copies = [copy for copy in self._copies if copy.memory == memory]
        for copy in copies:
            with contextlib.suppress(RuntimeError):  # its loop has ended, and so has it
                copy.loop.call_soon_threadsafe(copy.scope.cancel)
        return [copy.ended for copy in copies]
