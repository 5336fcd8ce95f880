"""Steps of a frame: work that is done whole, or breaks the frame."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any, ParamSpec, TypeVar

import torch

from everlong.errors import BrokenFrameError, DeviceMemoryError, MemoryBusyError
from everlong.kv_cache.interrupts import interrupts_between_steps

_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")


def run_to_end(steps: Callable[_Given, Generator[Any, None, _Made]]) -> Callable[_Given, _Made]:
    """Wrap a function that does something step by step, so that it does all of it."""

    @functools.wraps(steps)
    def done(*args: _Given.args, **kwargs: _Given.kwargs) -> _Made:
        under_way = steps(*args, **kwargs)
        while True:
            try:
                next(under_way)
            except StopIteration as end:
                made: _Made = end.value
                return made

    return done


@contextlib.contextmanager
def plain_tensors() -> Iterator[None]:
    """Context manager: its tensors have no gradients and can be written to later, in inference mode and out of it."""
    with torch.inference_mode(False), torch.no_grad():
        yield


class Steps:
    """Whether a frame is whole, and the step that is under way."""

    def __init__(self) -> None:
        self.broken = False  # a step was cut short, so that the frame is of no use any more
        self._under_way = False
        self._process = os.getpid()
        self._ends_in: threading.Thread | None = None  # the thread that ends the interpreter

    @property
    def of_this_process(self) -> bool:
        """Whether this process made the frame, and did not get it by a fork."""
        return os.getpid() == self._process

    def end_other_threads(self) -> None:
        """From now on no other thread computes: the interpreter ends, and would cut it short anywhere."""
        self._ends_in = threading.current_thread()

    def require_wanted(self) -> None:
        """End this thread, without a word, where another one ends the interpreter."""
        if self._ends_in not in (None, threading.current_thread()):
            raise SystemExit

    def require_whole(self) -> None:
        """Raise BrokenFrameError in a broken frame, and MemoryBusyError in the middle of a step, as in an observer."""
        if self._under_way:
            raise MemoryBusyError("a step of this frame is under way: call again once it is done")
        if self.broken:
            raise BrokenFrameError(
                "an earlier error cut a step of this frame short, and its content is wrong: close this MemoryModel "
                "(mm), then make another over its folder, or over mm.memory for a memory in RAM; it has all that was "
                "archived"
            )

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Wrap work that must be done whole. An exception out of it breaks the frame, unless `broken` is taken back."""
        self.require_whole()
        with interrupts_between_steps(), plain_tensors():
            self.broken = self._under_way = True
            try:
                yield
            except torch.OutOfMemoryError as error:
                raise of_the_device(error) from error
            finally:
                self._under_way = False
            self.broken = False

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Wrap a pause between two steps that belong together: until the next one, nobody else may begin any."""
        self._under_way = True
        try:
            yield
        finally:
            self._under_way = False


def of_the_device(error: torch.OutOfMemoryError) -> DeviceMemoryError:
    """Return the error in the words of a frame."""
    return DeviceMemoryError(
        f"{str(error).partition('. GPU')[0]}: a step of the frame found no room on the device; smaller "
        "frame.chunk_tokens, frame.tokens or search.heads_device_bytes take less. What was archived stays"
    )
