"""A device that has no memory left, or little: the ballast holds the rest."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch

import everlong.ops as ops

# Largest first; the last ones fill what the allocator keeps of its segments. It rounds up to 512 bytes.
_PIECES = (1 << 30, 64 << 20, 8 << 20, 2 << 20, 1 << 20, 64 << 10, 512)
_ROOM = 64 << 20  # beside what is reserved already: less than a model would need for long


class Ballast:
    """Holds memory of a GPU. Not thread-safe."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._held: list[torch.Tensor] = []

    def leave(self, spare: int) -> int:
        """Take all of the device's free memory but `spare` bytes; return how many bytes are held."""
        empty_cache()
        free, _ = torch.cuda.mem_get_info(self._device)
        if free > spare:
            self._held.append(torch.empty(free - spare, dtype=torch.uint8, device=self._device))
        return sum(map(len, self._held))

    def fill(self) -> None:
        """Leave torch's allocator nothing to give; the driver keeps what it needs for itself."""
        total = torch.cuda.get_device_properties(self._device).total_memory
        allowed = torch.cuda.memory_reserved(self._device) + _ROOM
        torch.cuda.set_per_process_memory_fraction(min(1.0, allowed / total), self._device)
        for size in _PIECES:
            with contextlib.suppress(torch.OutOfMemoryError):
                while True:
                    self._held.append(torch.empty(size, dtype=torch.uint8, device=self._device))

    def give_back(self) -> None:
        torch.cuda.set_per_process_memory_fraction(1.0, self._device)
        self._held.clear()
        empty_cache()


def empty_cache() -> None:
    gc.collect()
    torch.cuda.empty_cache()


@contextlib.contextmanager
def memory_runs_out(model: Any, device: torch.device, *, within: str) -> Iterator[Callable[[], None]]:
    """Yield a function; once it is called, the device has no memory until this ends.

    `within` says what finds none first: "forward", or "step", which is what the frame does once the model has computed.
    On a CPU these fail as if there were no memory.
    """
    full = False
    ballast = Ballast(device)
    with contextlib.ExitStack() as undo:

        def take() -> None:
            nonlocal full
            full = True
            if device.type == "cuda" and within == "forward":
                ballast.fill()

        def fail(*_: object, **__: object) -> None:
            raise torch.OutOfMemoryError("the device has no memory left")

        def computed(*_: object) -> None:
            if full and device.type == "cuda":
                ballast.fill()

        def begins(*_: object) -> None:
            if full:
                fail()

        if device.type == "cuda":
            undo.callback(ballast.give_back)
        if within == "step":
            undo.callback(model.register_forward_hook(computed).remove)
        elif device.type != "cuda":
            undo.callback(model.register_forward_pre_hook(begins).remove)
        if within == "step" and device.type != "cuda":
            shift = ops.shift_kv_

            def shift_or_fail(*given: Any) -> None:
                fail() if full else shift(*given)

            undo.enter_context(mock.patch.object(ops, "shift_kv_", shift_or_fail))
        yield take
