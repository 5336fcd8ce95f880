"""Blocks that were archived without what is stored with a block now: they are read again, in the background."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

import everlong._core as _core
from everlong.errors import MemoryNotFoundError
from everlong.frame.part import Hidden, Needs, Tensors
from everlong.models.shallow import shallow_states

# Before a block, for the states of its first tokens; what stood there when it was read was longer.
_CONTEXT_TOKENS = 256

# As the hook `block` of a part.
MakesTensors = Callable[[int, tuple[int, int], torch.Tensor, Hidden], Tensors]


class OlderBlocks:
    """Reads such blocks again, as far into the model as somebody looks, and puts what he makes of them to them."""

    def __init__(
        self,
        core: _core.Memory,
        model: Any,
        make: MakesTensors,
        needs: Callable[[], Needs],
        without: Callable[[], Iterable[int]],
    ) -> None:
        """`needs`: what `make` needs, as it is then. `without`: which blocks lack the tensors, by id."""
        self._core, self._model = core, model
        self._make, self._needs, self._without = make, needs, without

    def fill(self, closed: Callable[[], bool]) -> None:
        """Block after block, until it is `closed`."""
        for block in self._without():
            if closed():
                return
            layers = self._needs().hidden_layers
            try:
                found = self._core.block(block)
                ids, before = self._ids(found, behind_context=bool(layers))
                hidden: dict[int, torch.Tensor] = {}
                if layers:
                    states = shallow_states(self._model, ids, layers)
                    hidden = {layer: rows[before:] for layer, rows in states.items()}
                self._core.put_tensors(block, self._make(block, (found.begin, found.end), ids[before:], hidden))
            except MemoryNotFoundError:  # forgotten meanwhile
                continue

    def _ids(self, block: _core.BlockInfo, *, behind_context: bool) -> tuple[torch.Tensor, int]:
        """Ids of the block behind those of its context, and how many these are."""
        before = min(block.begin, _CONTEXT_TOKENS) if behind_context else 0
        try:
            ids = self._core.token_ids(block.stream, block.begin - before, block.end)
        except MemoryNotFoundError:  # what stood before it was forgotten
            before = 0
            ids = self._core.token_ids(block.stream, block.begin, block.end)
        return torch.from_numpy(ids.astype(np.int64)), before
