"""Moves payload bytes between a memory, which is on the host, and the device that the model computes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

import everlong._core as _core
import everlong.ops as ops

BATCH_BYTES = 32 << 20  # pages are read, copied and decoded in batches of about this size, one while the next is read
_BATCHES = 4  # in the pool at once
_BLOCKS = 2  # likewise: one is archived while the last one is being written
_ALIGNED = 256  # kernels want buffers at multiples of so many bytes
_PAYLOADS = 2  # of a batch, on the device: one is copied there while the last one is decoded

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Archived = _core.StagingBuffer | Bytes
# Writes a payload, and what it refuses of it (ops.archive_kv). Without a place for the latter it raises at once.
Encode = Callable[[torch.Tensor, torch.Tensor | None], object]
RequireArchived = Callable[[torch.Tensor], object]  # raises for what was refused, from a copy on the host


class PayloadTransfer:
    """Staging buffers and their way to the device and back. Where the device is the host nothing is copied.

    There the filled buffer is the payload. On a GPU buffers are pinned, and copies run beside the stream that computes.
    A copy to the device waits for the last use of its place there; a copy to the host waits for what wrote its source.
    No call here waits for the GPU, except what `archive` returns. `copies=True` copies on the host too, by a worker
    thread. For one thread at a time.
    """

    def __init__(
        self, device: torch.device, largest_page: int, largest_block: int = 0, *, copies: bool | None = None
    ) -> None:
        self._device = device
        self.copies = device.type != "cpu" if copies is None else copies
        self.batch_bytes = max(BATCH_BYTES, largest_page)
        index = None if device.type == "cpu" else device.index
        # A buffer takes up to twice its bytes. What is archived may stay in its buffer until the disk has it. Batches
        # find room however far the disk falls behind.
        self._for_batches = 2 * _BATCHES * self.batch_bytes
        self._engine = _core.TransferEngine(index, self._for_batches + 2 * _BLOCKS * largest_block)
        self._payloads: deque[tuple[torch.Tensor, _core.StreamPoint]] = deque()  # free ones, the longest free first
        self._made = 0

    def stage(self, count: int) -> _core.StagingBuffer:
        """Return a buffer of `count` <= batch_bytes bytes to fill. It waits while earlier ones are being copied."""
        return self._engine.acquire(count)

    @contextmanager
    def on_device(self, staged: _core.StagingBuffer) -> Iterator[torch.Tensor]:
        """Give what was staged, uint8 [bytes], for use on the current stream inside the `with` alone.

        The buffer must not be touched again.
        """
        host = _tensor_of(staged)
        if not self.copies:
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
        """Return room for a batch on the device, and the last use of it."""
        if self._payloads and self._made >= _PAYLOADS:
            return self._payloads.popleft()
        self._made += 1
        payload = torch.empty(self.batch_bytes, dtype=torch.uint8, device=self._device)
        return payload, self._engine.point_of(self._stream())  # torch may have used it for something else until now

    def archive(self, count: int, encode: Encode, require_archived: RequireArchived) -> Callable[[], Archived]:
        """Have `encode` write a uint8 [count] on the device. Return a call that brings it to the host.

        Any thread may make that call, once; those of several `archive` calls come one after the other. It raises what
        `require_archived` does. It returns a used buffer where one is free: the memory may hold it until it is written,
        without a copy.
        """
        staged = self._engine.try_acquire(count, keep_free=self._for_batches)
        if not self.copies:
            host = torch.empty(count, dtype=torch.uint8, device="cpu") if staged is None else _tensor_of(staged)
            encode(host, None)
            return lambda: host.numpy() if staged is None else staged
        # One buffer: whoever holds the payload holds both, until they are copied.
        written = torch.empty(_ALIGNED + count, dtype=torch.uint8, device=self._device)
        refused, payload = written[: ops.REFUSED_BYTES], written[_ALIGNED:]
        encode(payload, refused)
        encoded = self._engine.point_of(self._stream())
        tensor = self._engine.acquire(ops.REFUSED_BYTES)
        tells = self._engine.to_host(tensor, refused.data_ptr(), after=encoded)
        copy = None if staged is None else self._engine.to_host(staged, payload.data_ptr(), after=encoded)

        def arrived() -> Archived:
            self._engine.wait(tells)
            if copy is not None:
                self._engine.wait(copy)
            require_archived(_tensor_of(tensor))
            return self._in_batches(payload, encoded) if staged is None else staged

        return arrived

    def _in_batches(self, payload: torch.Tensor, encoded: _core.StreamPoint) -> Bytes:
        out = np.empty(payload.numel(), dtype=np.uint8)
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


def _tensor_of(staged: _core.StagingBuffer) -> torch.Tensor:
    return torch.from_numpy(staged.array)
