"""Payload bytes on their way between a memory, which is on the host, and the device that the model computes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import everlong._core as _core

BATCH_BYTES = 32 << 20  # pages are read, copied and decoded in batches of about this size, one while the next is read
_BATCHES = 4  # in the pool at once
_BLOCKS = 2  # likewise: one is archived while the last one is being written

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class PayloadTransfer:
    """Staging buffers and their way to the device and back. Where the device is the host nothing is copied.

    The buffer that is filled is the payload then. On a GPU buffers are pinned, and copies run beside the stream that
    computes, which waits for them: no call here waits for the GPU but `archive`. `copies=True` copies on the host too,
    by a worker thread.
    """

    def __init__(
        self, device: torch.device, largest_page: int, largest_block: int = 0, *, copies: bool | None = None
    ) -> None:
        self._device = device
        self._copies = device.type != "cpu" if copies is None else copies
        self.batch_bytes = max(BATCH_BYTES, largest_page)
        index = None if device.type == "cpu" else device.index
        # A buffer takes up to twice its bytes. What is archived may stay in its buffer until the disk has it: however
        # far that falls behind, batches find room.
        self._for_batches = 2 * _BATCHES * self.batch_bytes
        self._engine = _core.TransferEngine(index, self._for_batches + 2 * _BLOCKS * largest_block)

    def stage(self, count: int) -> _core.StagingBuffer:
        """A buffer of `count` <= batch_bytes bytes to fill; waits when earlier ones are still being copied."""
        return self._engine.acquire(count)

    def to_device(self, staged: _core.StagingBuffer) -> torch.Tensor:
        """What was staged, uint8 [bytes], for use on the current stream; the buffer must not be touched again."""
        host = torch.from_numpy(staged.array)
        if not self._copies:
            return host
        payload = torch.empty_like(host, device=self._device)
        transfer = self._engine.to_device(staged, payload.data_ptr(), self._stream())
        if self._device.type == "cpu":
            self._engine.wait(transfer)
        return payload

    def archive(self, count: int, encode: Callable[[torch.Tensor], object]) -> _core.StagingBuffer | Bytes:
        """The bytes that `encode` writes to a uint8 [count] on the device, on the host.

        In a buffer that was used before, where one is free: the memory may hold it until it is written, without a copy.
        """
        staged = self._engine.try_acquire(count, keep_free=self._for_batches)
        if self._copies:
            payload = torch.empty(count, dtype=torch.uint8, device=self._device)
            encode(payload)
            if staged is None:
                return self._in_batches(payload)
            self._engine.wait(self._engine.to_host(staged, payload.data_ptr(), self._stream()))
            return staged
        if staged is None:
            payload = torch.empty(count, dtype=torch.uint8, device="cpu")
            encode(payload)
            return payload.numpy()
        encode(torch.from_numpy(staged.array))
        return staged

    def _in_batches(self, payload: torch.Tensor) -> Bytes:
        out = np.empty(payload.numel(), dtype=np.uint8)
        under_way: deque[tuple[int, _core.StagingBuffer, _core.Transfer]] = deque()
        for first in range(0, len(out), self.batch_bytes):
            staged = self._engine.acquire(min(self.batch_bytes, len(out) - first))
            address = payload.data_ptr() + first
            under_way.append((first, staged, self._engine.to_host(staged, address, self._stream())))
            if len(under_way) == _BATCHES:
                self._take_oldest(under_way, out)
        while under_way:
            self._take_oldest(under_way, out)
        return out

    def _take_oldest(self, under_way: deque[tuple[int, _core.StagingBuffer, _core.Transfer]], out: Bytes) -> None:
        first, staged, transfer = under_way.popleft()
        self._engine.wait(transfer)
        out[first : first + len(staged.array)] = staged.array

    def _stream(self) -> int:
        return 0 if self._device.type == "cpu" else int(torch.cuda.current_stream(self._device).cuda_stream)
