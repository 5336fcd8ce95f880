"""Archived blocks that lack tensors which are stored with a block now. They are read again, in the background."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

import everlong._core as _core
from everlong.errors import MemoryNotFoundError
from everlong.frame.part import Hidden, Needs, Tensors
from everlong.models.early_exit import early_exit_states

# Tokens read before a block, for the states of its first tokens. More stood there when it was first read.
_CONTEXT_TOKENS = 256

# Like the hook `block` of a part.
MakesTensors = Callable[[int, tuple[int, int], torch.Tensor, Hidden], Tensors]


class OlderBlocks:
    """Reads such blocks again, as deep into the model as the states are needed, and stores the tensors with them."""

    def __init__(
        self,
        core: _core.Memory,
        model: Any,
        make: MakesTensors,
        needs: Callable[[], Needs],
        without: Callable[[], Iterable[int]],
    ) -> None:
        """`needs` returns what `make` needs then; `without` returns the ids of the blocks that lack the tensors."""
        self._core, self._model = core, model
        self._make, self._needs, self._without = make, needs, without

    def fill(self, closed: Callable[[], bool]) -> None:
        """Make the tensors block after block, until `closed()`."""
        for block in self._without():
            if closed():
                return
            layers = self._needs().hidden_layers
            try:
                found = self._core.blocks.info(block)
                ids, before = self._ids(found, behind_context=bool(layers))
                hidden: dict[int, torch.Tensor] = {}
                if layers:
                    states = early_exit_states(self._model, ids, layers)
                    hidden = {layer: rows[before:] for layer, rows in states.items()}
                self._core.blocks.put_tensors(block, self._make(block, (found.begin, found.end), ids[before:], hidden))
            except MemoryNotFoundError:  # forgotten meanwhile
                continue

    def _ids(self, block: _core.BlockInfo, *, behind_context: bool) -> tuple[torch.Tensor, int]:
        """Return ids of the block after those of its context, and how many of these there are."""
        before = min(block.begin, _CONTEXT_TOKENS) if behind_context else 0
        try:
            ids = self._core.blocks.token_ids(block.stream, block.begin - before, block.end)
        except MemoryNotFoundError:  # what stood before it was forgotten
            before = 0
            ids = self._core.blocks.token_ids(block.stream, block.begin, block.end)
        return torch.from_numpy(ids.astype(np.int64)), before
