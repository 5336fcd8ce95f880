"""The towers at work: vectors of blocks while they are read, and of a question; blocks that lack them get them
later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import everlong._core as _core
from everlong.errors import MemoryNotFoundError
from everlong.learned.pack import Pack
from everlong.learned.towers import PART, LateTowers, as_int8, means, side_by_side
from everlong.models.shallow import shallow_states

# Before a block, for the states of its first tokens; what stood there when it was read was longer.
_CONTEXT_TOKENS = 256


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


class MissingMeaning:
    """Blocks that were archived without vectors: they are read again, as far into the model as the towers look."""

    def __init__(self, core: _core.Memory, model: Any, meaning: Meaning) -> None:
        self._core = core
        self._model = model
        self._meaning = meaning

    def fill(self, closed: Callable[[], bool]) -> None:
        """Block after block, until it is `closed`."""
        for block in self._core.blocks_without_meaning():
            if closed():
                return
            try:
                found = self._core.block(block)
                first = max(0, found.begin - _CONTEXT_TOKENS)
                try:
                    ids = self._core.token_ids(found.stream, first, found.end)
                except MemoryNotFoundError:  # what stood before it was forgotten
                    first = found.begin
                    ids = self._core.token_ids(found.stream, first, found.end)
                own = torch.from_numpy(ids.astype(np.int64))
                hidden = shallow_states(self._model, own, self._meaning.hidden_layers)
                of_block = {layer: states[found.begin - first :] for layer, states in hidden.items()}
                self._core.put_tensors(block, self._meaning.tensors(own[found.begin - first :], of_block))
            except MemoryNotFoundError:  # forgotten meanwhile
                continue
