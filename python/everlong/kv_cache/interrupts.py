"""Ctrl-C between two steps of a long piece of work, never in the middle of one."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def interrupts_between_steps() -> Iterator[Callable[[], None]]:
    """Context manager: the first Ctrl-C waits for a call of the function it gives, which raises KeyboardInterrupt.

    A second Ctrl-C does not wait. Nothing changes outside the main thread, where Python delivers no signals, and where
    other code handles Ctrl-C.
    """
    ours = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if ours else None
    if before is not signal.default_int_handler:
        yield lambda: None
        return
    waiting = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal waiting
        if waiting:
            raise KeyboardInterrupt
        waiting = True

    def step() -> None:
        nonlocal waiting
        if waiting:
            waiting = False
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, note)
    try:
        yield step
    finally:
        signal.signal(signal.SIGINT, before)
    step()
