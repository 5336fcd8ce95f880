"""Turns of a MemoryModel that several threads call, as frameworks do.

It takes one call at a time, and refuses another one meanwhile. Here that one waits.
"""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import TypeVar

from everlong.errors import MemoryBusyError
from everlong.generation.exclusive import CallWithinCallError
from everlong.generation.memory_model import MemoryModel

PATIENCE = 600.0  # seconds
_POLL = 0.005  # seconds

Made = TypeVar("Made")


def exclusive(call: Callable[[], Made], patience: float = PATIENCE) -> Made:
    """Make a call once no other thread's is at work. MemoryBusyError where that takes longer than `patience`.

    A call that is refused has done nothing, so it is simply made again. One from within the call at work, as from its
    streamer, is refused at once.
    """
    end = time.monotonic() + patience
    while True:
        try:
            return call()
        except CallWithinCallError:
            raise
        except MemoryBusyError:
            if time.monotonic() >= end:
                raise
        time.sleep(_POLL)


@contextlib.contextmanager
def exclusive_calls(memory: MemoryModel, patience: float = PATIENCE) -> Iterator[None]:
    """Wrap several calls of this thread, once no other thread's is at work. None comes between two of them."""
    with contextlib.ExitStack() as turn:
        exclusive(lambda: turn.enter_context(memory.exclusive_calls()), patience)
        yield


def exclusive_pieces(begin: Callable[[], Generator[str]]) -> Generator[str]:
    """Yield the pieces of a streamed answer, which is begun once no other thread's call is at work.

    MemoryBusyError where another call of this thread ended it meanwhile: what is there is not the answer.
    """

    def first() -> tuple[Generator[str], str | None]:
        streamed = begin()
        return streamed, next(streamed, None)

    streamed, piece = exclusive(first)
    with contextlib.closing(streamed):
        while piece is not None:
            yield piece
            if inspect.getgeneratorstate(streamed) == inspect.GEN_CLOSED:
                raise MemoryBusyError("another call of the thread that streams this answer ended it")
            piece = next(streamed, None)


def before_stops(pieces: Iterable[str], stops: Sequence[str]) -> Iterator[str]:
    """Yield text up to the first of some strings, without it. What may be its beginning waits."""
    waiting, longest = "", max(map(len, stops), default=0)
    for piece in pieces:
        waiting += piece
        found = [at for stop in stops if (at := waiting.find(stop)) >= 0]
        if found:
            yield waiting[: min(found)]
            return
        sure = len(waiting) - longest + 1 if longest else len(waiting)
        if sure > 0:
            yield waiting[:sure]
            waiting = waiting[sure:]
    yield waiting
