"""Threads for calls of a memory that asyncio awaits.

They may wait for long, and would take all of asyncio's own few threads, which whoever they wait for may need.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_MOST = 64

Made = TypeVar("Made")

_waiting = ThreadPoolExecutor(_MOST, "everlong")


async def in_thread(call: Callable[[], Made]) -> Made:
    """Return what a call returns that may wait for its turn."""
    return await asyncio.get_running_loop().run_in_executor(_waiting, call)


async def pieces_in_thread(pieces: Generator[Made]) -> AsyncGenerator[Made]:
    """Yield what a generator yields, in a thread of its own: another call in that thread would end its answer."""
    loop, alone, end = asyncio.get_running_loop(), ThreadPoolExecutor(1, "everlong answer"), object()
    try:
        while (piece := await loop.run_in_executor(alone, next, pieces, end)) is not end:
            yield piece  # type: ignore[misc]  # not the end
    finally:
        alone.submit(pieces.close)
        alone.shutdown(wait=False)
