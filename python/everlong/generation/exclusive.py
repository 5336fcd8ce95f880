"""Gives a MemoryModel's frame to one call at a time, in whatever thread."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from everlong.errors import ClosedError, MemoryBusyError

_BUSY = (
    "another call of this MemoryModel is at work: in another thread, or around this call, which comes from its "
    "streamer, logits processor or progress: one at a time"
)
_STREAMING = "another thread streams an answer of this MemoryModel: take that to its end or close it first"

_TRY_SECONDS, _TRIES = 0.1, 300  # how long the end of the interpreter waits for a call in another thread


_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")


class _HasGuard(Protocol):
    _guard: CallGuard


_Caller = TypeVar("_Caller", bound=_HasGuard)


def exclusive(
    method: Callable[Concatenate[_Caller, _Given], _Made],
) -> Callable[Concatenate[_Caller, _Given], _Made]:
    """Wrap a method that needs the frame for itself."""

    @functools.wraps(method)
    def alone(self: _Caller, /, *args: _Given.args, **kwargs: _Given.kwargs) -> _Made:
        with self._guard.exclusive():
            return method(self, *args, **kwargs)

    return alone


_CallerId = tuple[threading.Thread, asyncio.Task[object] | None]


def _caller() -> _CallerId:
    try:
        return threading.current_thread(), asyncio.current_task()
    except RuntimeError:  # no loop runs in this thread
        return threading.current_thread(), None


class CallWithinCallError(MemoryBusyError):
    """The call comes from within the one that is at work, in the same thread: to wait for that is to wait for ever."""


class CallGuard:
    """The lock of a MemoryModel. Thread-safe.

    - A call has the frame from its beginning to its end. A streamed answer has it from its first piece to its last, or
      until its generator is closed or dropped. So it has the frame while it waits to be asked for its next piece.
    - No call waits. Another call meanwhile gets MemoryBusyError, and nothing is changed: from another thread, and from
      within the call itself (its streamer, its logits processors, its progress, an observer of blocks).
    - But a call of the thread that asked for a waiting answer's newest piece ends that answer, as if it had been
      closed. Any thread that has the generator may ask for the next piece. From then on the answer is that thread's.
    - `MemoryModel.exclusive_calls` gives the frame to several calls of one thread, one after the other. Tasks of an
      asyncio loop share a thread, and are told apart.
    - A signal takes the frame, too, and is refused like any call. But the thread that has the frame may send it,
      between two pieces or from within, wherever no step of the frame is under way.
    - `close` is a call like any other, and the last one: ClosedError for all later calls.

    What only looks needs no turn: `text`, `trace`, `last_recalled`, `last_confidence`, `profile`, `stream_tokens`,
    `config`, and all that an open Memory does. A `config` that is set holds from the next search on.
    """

    def __init__(self, require_ready: Callable[[], None] = lambda: None) -> None:
        """`require_ready` raises where a call cannot go on. Every call but the last asks it."""
        self._require_ready = require_ready
        self._lock = threading.Lock()  # held by the call that has the frame
        self._thread: threading.Thread | None = None  # the thread of that call
        self._several: _CallerId | None = None  # who has it for several calls, between two of them
        self._streamed: Callable[[], Generator[str] | None] = lambda: None  # the newest streamed answer
        self._closed = False

    def require_open(self) -> None:
        if self._closed:
            raise ClosedError("this MemoryModel was closed")

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Wrap a call that has the frame."""
        if self._several is not None and self._several == _caller():
            whose, self._several = self._several, None  # a call within this one is refused, as ever
            try:
                self._require_ready()
                yield
            finally:
                self._several = whose
            return
        with self._holding_lock():
            self._require_ready()
            yield

    @contextlib.contextmanager
    def several(self) -> Iterator[None]:
        """Wrap several calls of this thread, between which no other thread's or task's comes."""
        with self.exclusive():
            self._several = _caller()
            try:
                yield
            finally:
                self._several = None

    @contextlib.contextmanager
    def _holding_lock(self) -> Iterator[None]:
        self.require_open()
        self._close_suspended()
        if not self._lock.acquire(blocking=False):
            raise (CallWithinCallError if self._thread is threading.current_thread() else MemoryBusyError)(_BUSY)
        self._thread = threading.current_thread()
        try:
            self.require_open()
            yield
        finally:
            self._thread = None
            self._lock.release()

    @contextlib.contextmanager
    def streaming(self, answer: Callable[[], Generator[str] | None]) -> Iterator[Callable[[], None]]:
        """Do as `alone` around all pieces of an answer. Gives a function to call when the next piece is asked for.

        `answer` refers to its generator weakly: one that nobody holds any more is closed at once.
        """
        with self._holding_lock():
            self._streamed = answer
            self._require_ready()
            yield self._resumed

    def _resumed(self) -> None:
        self._thread = threading.current_thread()

    @contextlib.contextmanager
    def between_steps(self) -> Iterator[None]:
        """Wrap a signal to the frame between two steps, from the thread that has it, or while no thread has."""
        self.require_open()
        if self._thread is threading.current_thread():
            yield
            return
        if not self._lock.acquire(blocking=False):
            raise MemoryBusyError(_BUSY if self._suspended_answer() is None else _STREAMING)
        try:
            self.require_open()
            yield
        finally:
            self._lock.release()

    @contextlib.contextmanager
    def closing(self) -> Iterator[bool]:
        """Wrap the last call. Gives False where there was one before."""
        if self._closed:
            yield False
            return
        try:
            turn = contextlib.ExitStack()
            turn.enter_context(self._holding_lock())
        except ClosedError:  # another thread was faster
            yield False
            return
        with turn:
            self._closed = True
            yield True

    def shut_down(self) -> None:
        """End the waiting answer of any thread, and wait until no call is at work. MemoryBusyError where one stays.

        For the end of the interpreter, when other threads compute no more (`Steps.end_other_threads`).
        """
        for _ in range(_TRIES):
            if (waiting := self._suspended_answer()) is not None:
                with contextlib.suppress(ValueError):  # its thread asked for the next piece meanwhile
                    waiting.close()
            if self._lock.acquire(timeout=_TRY_SECONDS):
                self._lock.release()
                return
        raise MemoryBusyError(_BUSY)

    def _suspended_answer(self) -> Generator[str] | None:
        """Return the answer that waits to be asked for its next piece."""
        streamed = self._streamed()
        waits = streamed is not None and inspect.getgeneratorstate(streamed) == inspect.GEN_SUSPENDED
        return streamed if waits else None

    def _close_suspended(self) -> None:
        """Close the waiting answer of this thread; its branch would undo what comes now."""
        waiting = self._suspended_answer()
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
