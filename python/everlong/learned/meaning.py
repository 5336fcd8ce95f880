"""The towers at work: vectors of blocks while they are read, and of a question."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import everlong._core as _core
from everlong.learned.pack import Pack
from everlong.learned.towers import PART, LateTowers, as_int8, means, side_by_side


class Meaning:
    """The towers of a pack over pages of a memory. Thread-safe."""

    def __init__(self, pack: Pack, page_tokens: int) -> None:
        part = pack.parts[PART]
        self.towers = LateTowers.of_part(part)
        self.id = part.id
        self.hidden_layers = self.towers.settings.layers
        self._page_tokens = page_tokens

    def take_up(self, core: _core.Memory, gpu: int | None = None, gpu_bytes: int = 0) -> None:
        """Let the memory search by vectors of these towers: on that GPU, in so much of its memory at most."""
        settings = self.towers.settings
        core.set_meaning(self.id, settings.dimension, settings.group_tokens, device=gpu, device_bytes=gpu_bytes)

    @torch.no_grad()
    def tensors(self, ids: torch.Tensor, hidden: Mapping[int, torch.Tensor]) -> dict[str, npt.NDArray[Any]]:
        """What is stored with a block (frame/block_writers.py): int8 [vectors, dimension], pages in order."""
        states = side_by_side(hidden, self.hidden_layers).float().cpu()
        vectors = self.towers.written(means(states, self._page_tokens, self.towers.settings.group_tokens))
        return {f"meaning.{self.id}": as_int8(vectors).numpy()}

    @torch.no_grad()
    def query(self, hidden: Mapping[int, torch.Tensor]) -> npt.NDArray[np.float32]:
        """[T, dimension] of a question's hidden states [T, hidden size] by layer; a row's norm is what it weighs."""
        asked: npt.NDArray[np.float32] = self.towers.asked(
            side_by_side(hidden, self.hidden_layers).float().cpu()
        ).numpy()
        return asked
