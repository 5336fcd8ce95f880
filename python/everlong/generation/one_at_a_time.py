"""Who has a MemoryModel's frame: one call at a time, in whatever thread."""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable, Generator, Iterator

from everlong.errors import ClosedError, MemoryBusyError

_BUSY = (
    "another call of this MemoryModel is at work, in another thread, or below this one, which comes from its streamer, "
    "logits processor or progress: one at a time"
)
_STREAMING = (
    "another thread streams an answer of this MemoryModel: it has the frame until that was taken to its end or closed"
)


class OneAtATime:
    """The lock of a MemoryModel. Thread-safe.

    - A call has the frame from its beginning to its end. An answer that is streamed has it from its first piece to its
      last, or until its generator is closed or dropped, and so while it waits for its next piece to be asked for.
    - Nobody waits. Whoever comes meanwhile gets MemoryBusyError, and nothing is changed: from another thread, and from
      below the call itself (its streamer, its logits processors, its progress, an observer of blocks).
    - But a call of the thread that asked for a waiting answer's newest piece ends that answer, as if it had been
      closed. Any thread that has the generator may ask for the next piece; from then on the answer is that thread's.
    - A signal takes the frame, too, and is refused like any call; but the thread that has the frame may send it,
      between two pieces or from below, wherever no step of the frame is under way.
    - `close` is a call like any other, and the last one: ClosedError for all that come later.

    What only looks needs no turn: `text`, `trace`, `last_recalled`, `last_confidence`, `profile`, `stream_tokens`,
    `config`, and all that an open Memory does. A `config` that is set holds from the next search on.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held by the call that has the frame
        self._thread: threading.Thread | None = None  # whose call that is
        self._streamed: Callable[[], Generator[str] | None] = lambda: None  # the newest answer that is streamed
        self._closed = False

    def require_open(self) -> None:
        if self._closed:
            raise ClosedError("this MemoryModel was closed")

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Inside, a call that has the frame."""
        self.require_open()
        self._end_waiting()
        if not self._lock.acquire(blocking=False):
            raise MemoryBusyError(_BUSY)
        self._thread = threading.current_thread()
        try:
            self.require_open()
            yield
        finally:
            self._thread = None
            self._lock.release()

    @contextlib.contextmanager
    def streaming(self, answer: Callable[[], Generator[str] | None]) -> Iterator[Callable[[], None]]:
        """The same around all of an answer's pieces; to be told after each that the next one was asked for.

        `answer` refers to its generator weakly: one that nobody holds any more is closed at once.
        """
        with self.alone():
            self._streamed = answer
            yield self._taken_up

    def _taken_up(self) -> None:
        self._thread = threading.current_thread()

    @contextlib.contextmanager
    def signalling(self) -> Iterator[None]:
        """Inside, what is said to the frame between two steps, by whoever has it or while nobody does."""
        self.require_open()
        if self._thread is threading.current_thread():
            yield
            return
        if not self._lock.acquire(blocking=False):
            raise MemoryBusyError(_BUSY if self._waiting() is None else _STREAMING)
        try:
            self.require_open()
            yield
        finally:
            self._lock.release()

    @contextlib.contextmanager
    def closing(self) -> Iterator[bool]:
        """Inside, the last call; False where there was one before."""
        if self._closed:
            yield False
            return
        try:
            turn = contextlib.ExitStack()
            turn.enter_context(self.alone())
        except ClosedError:  # another thread was faster
            yield False
            return
        with turn:
            self._closed = True
            yield True

    def _waiting(self) -> Generator[str] | None:
        """The answer that waits for its next piece to be asked for."""
        streamed = self._streamed()
        waits = streamed is not None and inspect.getgeneratorstate(streamed) == inspect.GEN_SUSPENDED
        return streamed if waits else None

    def _end_waiting(self) -> None:
        """Close the waiting answer of this thread; its branch would swallow what comes now."""
        waiting = self._waiting()
        if waiting is None:
            return
        if self._thread is not threading.current_thread():
            raise MemoryBusyError(_STREAMING)
        try:
            waiting.close()
        except ValueError:
            if inspect.getgeneratorstate(waiting) != inspect.GEN_RUNNING:
                raise
            raise MemoryBusyError(_STREAMING) from None  # another thread asked for its next piece meanwhile
