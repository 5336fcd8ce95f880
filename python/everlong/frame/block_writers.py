"""Who adds to a block what lies beside its keys and values: tensors that are stored in the block's own commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch


class BlockWriter(Protocol):
    """Makes tensors of a block before it is archived, on the path of reading: what takes long is not for it."""

    @property
    def hidden_layers(self) -> Sequence[int]:
        """Whose states it needs, as `HiddenTap` counts them."""

    def tensors(self, ids: torch.Tensor, hidden: Mapping[int, torch.Tensor]) -> Mapping[str, npt.NDArray[Any]]:
        """By name, of a block's ids [n] int64 and hidden states [n, hidden size] of each of `hidden_layers`."""


class BlockWriters:
    """The writers of one frame. Used by the frame's thread alone."""

    def __init__(self) -> None:
        self._writers: list[BlockWriter] = []

    def add(self, writer: BlockWriter) -> None:
        self._writers.append(writer)

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        """That any of them needs."""
        return tuple(sorted({layer for writer in self._writers for layer in writer.hidden_layers}))

    def tensors(self, ids: torch.Tensor, hidden: Mapping[int, torch.Tensor]) -> dict[str, npt.NDArray[Any]]:
        """Of all of them; of a writer that lacks states of the block, as of one that was read without it, none."""
        made: dict[str, npt.NDArray[Any]] = {}
        for writer in self._writers:
            if all(layer in hidden for layer in writer.hidden_layers):
                wanted = {layer: hidden[layer] for layer in writer.hidden_layers}
                made |= {name: np.ascontiguousarray(tensor) for name, tensor in writer.tensors(ids, wanted).items()}
        return made
