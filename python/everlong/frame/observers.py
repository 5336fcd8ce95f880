"""Observers of the archive: called for every block, in the order of archiving."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence

import torch

_LOGGER = logging.getLogger("everlong")

# on_block(block, span, ids, hidden): the block's id in the memory, its tokens of the stream [begin, end), their ids [n]
# int64 on the CPU, and hidden states [n, hidden size] by layer, on the model's device. Layers are counted as
# `HiddenTap` counts them. An observer may keep the tensors, and must not change them: others get them too.
OnBlock = Callable[[int, tuple[int, int], torch.Tensor, Mapping[int, torch.Tensor]], None]

# At most so many blocks wait for observers in the background. Beyond that, archiving waits.
_MOST_WAITING = 16


@dataclasses.dataclass(frozen=True, eq=False)
class Observation:
    """A registered observer, and a context manager. After its end, or after `close`, it is told nothing more."""

    on_block: OnBlock
    hidden_layers: tuple[int, ...]
    background: bool
    _observers: Observers

    def close(self) -> None:
        """Stop telling it of blocks. A call under way in the background goes on. Calling it twice does nothing."""
        self._observers.remove(self)

    def __enter__(self) -> Observation:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Observers:
    """The observers of one frame, in the order of their registration.

    All observers in the background share one thread, off the path of reading, and are called block after block. An
    observer's error neither hurts the frame nor keeps a block out of the memory. It is logged, and `settle` raises the
    first one. For the frame's thread alone.
    """

    def __init__(self) -> None:
        self._registered: list[Observation] = []
        self._thread: concurrent.futures.ThreadPoolExecutor | None = None
        self._room = threading.Semaphore(_MOST_WAITING)
        self._waiting: list[concurrent.futures.Future[None]] = []
        self._failed: list[BaseException] = []

    def add(self, on_block: OnBlock, hidden_layers: Sequence[int], *, background: bool) -> Observation:
        observation = Observation(on_block, tuple(hidden_layers), background, self)
        self._registered.append(observation)
        return observation

    def remove(self, observation: Observation) -> None:
        if observation in self._registered:
            self._registered.remove(observation)

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        """The layers that any observer wants."""
        return tuple(sorted({layer for one in self._registered for layer in one.hidden_layers}))

    def notify(self, block: int, span: tuple[int, int], ids: torch.Tensor, hidden: Mapping[int, torch.Tensor]) -> None:
        """Tell the observers that a block was archived."""
        for one in tuple(self._registered):
            wanted = {layer: hidden[layer] for layer in one.hidden_layers if layer in hidden}
            call = functools.partial(self._call, one, block, span, ids, wanted)
            if not one.background:
                call()
                continue
            self._room.acquire()
            try:
                told = self._executor().submit(call)
            except RuntimeError:  # the interpreter ends, and starts no thread any more
                self._room.release()
                call()
                continue
            told.add_done_callback(lambda _: self._room.release())
            self._waiting = [*(future for future in self._waiting if not future.done()), told]

    def settle(self) -> None:
        """Return once all observers were told of all archived blocks. Raise, once, the first error of an observer."""
        concurrent.futures.wait(self._waiting)
        self._waiting.clear()
        if self._failed:
            failed, self._failed = self._failed[0], []
            raise failed

    def close(self) -> None:
        """Wait for those in the background, and end their thread."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def _executor(self) -> concurrent.futures.ThreadPoolExecutor:
        if self._thread is None:
            self._thread = concurrent.futures.ThreadPoolExecutor(1, "everlong observers")
        return self._thread

    def _call(
        self,
        one: Observation,
        block: int,
        span: tuple[int, int],
        ids: torch.Tensor,
        hidden: Mapping[int, torch.Tensor],
    ) -> None:
        try:
            one.on_block(block, span, ids, hidden)
        except Exception as error:
            _LOGGER.warning("an observer of block %d failed: %r", block, error)
            self._failed.append(error)
