"""Payload bytes on their way between a memory, which is on the host, and the device that the model computes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

import everlong._core as _core

BATCH_BYTES = 32 << 20  # pages are read, copied and decoded in batches of about this size, one while the next is read
_BATCHES = 4  # in the pool at once
_BLOCKS = 2  # likewise: one is archived while the last one is being written
_PAYLOADS = 2  # of a batch, on the device: one is copied there while the last one is decoded

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class PayloadTransfer:
    """Staging buffers and their way to the device and back. Where the device is the host nothing is copied.

    The buffer that is filled is the payload then. On a GPU buffers are pinned, and copies run beside the stream that
    computes: one to the device waits for what used its place there last, one to the host for what wrote its source,
    neither for anything else. No call here waits for the GPU but `archive`. `copies=True` copies on the host too, by a
    worker thread. Of one thread at a time.
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
        self._payloads: deque[tuple[torch.Tensor, _core.StreamPoint]] = deque()  # free, the longest so first
        self._made = 0

    def stage(self, count: int) -> _core.StagingBuffer:
        """A buffer of `count` <= batch_bytes bytes to fill; waits when earlier ones are still being copied."""
        return self._engine.acquire(count)

    @contextmanager
    def on_device(self, staged: _core.StagingBuffer) -> Iterator[torch.Tensor]:
        """What was staged, uint8 [bytes], for use on the current stream inside the `with` alone.

        The buffer must not be touched again.
        """
        host = torch.from_numpy(staged.array)
        if not self._copies:
            yield host
            return
        payload, last_use = self._payload()
        try:
            transfer = self._engine.to_device(staged, payload.data_ptr(), after=last_use)
            self._engine.order_after(transfer, self._stream())
            yield payload[: len(host)]
        finally:
            self._payloads.append((payload, self._engine.point_of(self._stream())))

    def _payload(self) -> tuple[torch.Tensor, _core.StreamPoint]:
        """Room for a batch on the device, and the last use of it."""
        if self._payloads and self._made >= _PAYLOADS:
            return self._payloads.popleft()
        self._made += 1
        payload = torch.empty(self.batch_bytes, dtype=torch.uint8, device=self._device)
        return payload, self._engine.point_of(self._stream())  # torch may have had other use of it until now

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
            encoded = self._engine.point_of(self._stream())
            self._engine.wait(self._engine.to_host(staged, payload.data_ptr(), after=encoded))
            return staged
        if staged is None:
            payload = torch.empty(count, dtype=torch.uint8, device="cpu")
            encode(payload)
            return payload.numpy()
        encode(torch.from_numpy(staged.array))
        return staged

    def _in_batches(self, payload: torch.Tensor) -> Bytes:
        out = np.empty(payload.numel(), dtype=np.uint8)
        encoded = self._engine.point_of(self._stream())
        under_way: deque[tuple[int, _core.StagingBuffer, _core.Transfer]] = deque()
        for first in range(0, len(out), self.batch_bytes):
            staged = self._engine.acquire(min(self.batch_bytes, len(out) - first))
            address = payload.data_ptr() + first
            under_way.append((first, staged, self._engine.to_host(staged, address, after=encoded)))
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
