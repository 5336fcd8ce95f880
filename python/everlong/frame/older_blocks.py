"""Blocks that were archived without what is stored with a block now: they are read again, in the background."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch

import everlong._core as _core
from everlong.errors import MemoryNotFoundError
from everlong.models.shallow import shallow_states

# Before a block, for the states of its first tokens; what stood there when it was read was longer.
_CONTEXT_TOKENS = 256


@runtime_checkable
class StatesWriter(Protocol):
    """What makes tensors of a block's ids and hidden states (frame/block_writers.py)."""

    @property
    def hidden_layers(self) -> Sequence[int]: ...

    def tensors(self, ids: torch.Tensor, hidden: Mapping[int, torch.Tensor]) -> Mapping[str, npt.NDArray[Any]]: ...


class BlockStatesWriter(Protocol):
    """One that asks the memory for more of the block (frame/older_kept.py)."""

    @property
    def hidden_layers(self) -> Sequence[int]: ...

    def tensors_of(
        self, block: _core.BlockInfo, ids: torch.Tensor, hidden: Mapping[int, torch.Tensor]
    ) -> Mapping[str, npt.NDArray[Any]]: ...


class OlderBlocks:
    """Reads such blocks again, as far into the model as a writer looks, and puts the writer's tensors to them."""

    def __init__(
        self,
        core: _core.Memory,
        model: Any,
        writer: StatesWriter | BlockStatesWriter,
        without: Callable[[], Iterable[int]],
    ) -> None:
        """`without`: which blocks lack the tensors, by id."""
        self._core = core
        self._model = model
        self._writer = writer
        self._without = without

    def fill(self, closed: Callable[[], bool]) -> None:
        """Block after block, until it is `closed`."""
        for block in self._without():
            if closed():
                return
            try:
                found = self._core.block(block)
                ids, before = self._ids(found)
                hidden: dict[int, torch.Tensor] = {}
                if self._writer.hidden_layers:
                    states = shallow_states(self._model, ids, self._writer.hidden_layers)
                    hidden = {layer: rows[before:] for layer, rows in states.items()}
                self._core.put_tensors(block, self._tensors(found, ids[before:], hidden))
            except MemoryNotFoundError:  # forgotten meanwhile
                continue

    def _tensors(
        self, block: _core.BlockInfo, ids: torch.Tensor, hidden: Mapping[int, torch.Tensor]
    ) -> Mapping[str, npt.NDArray[Any]]:
        writer = self._writer
        return (
            writer.tensors(ids, hidden) if isinstance(writer, StatesWriter) else writer.tensors_of(block, ids, hidden)
        )

    def _ids(self, block: _core.BlockInfo) -> tuple[torch.Tensor, int]:
        """Ids of the block behind those of its context, and how many these are."""
        before = min(block.begin, _CONTEXT_TOKENS) if self._writer.hidden_layers else 0
        try:
            ids = self._core.token_ids(block.stream, block.begin - before, block.end)
        except MemoryNotFoundError:  # what stood before it was forgotten
            before = 0
            ids = self._core.token_ids(block.stream, block.begin, block.end)
        return torch.from_numpy(ids.astype(np.int64)), before
