"""Payloads of chosen tokens for blocks that were archived without: their keys and values come out of the archive.

Which tokens, is what was chosen when the block was archived; of one that was not trimmed then it is chosen now.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import everlong._core as _core
from everlong.config import MemoryConfig
from everlong.errors import MemoryNotFoundError
from everlong.frame.kept_payload import chosen_in, tensors_of
from everlong.frame.kept_writing import AnchorWriter, plain_rows, written_payload
from everlong.frame.trimming import BlockTokens, TokenScorer, best_tokens
from everlong.memory.kept import TOKENS, payload_name


class OlderKept:
    """What a background makes of such blocks (frame/older_blocks.py). Of one thread at a time."""

    def __init__(
        self,
        core: _core.Memory,
        config: MemoryConfig,
        scorer: TokenScorer,
        writer: AnchorWriter | None,
    ) -> None:
        self._core, self._config = core, config
        self._scorer, self._writer = scorer, writer
        self._name = payload_name(None if writer is None else writer.id)
        self._chooses = True

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        """Whose states are read: the scorer's only where something is still to be chosen."""
        layers = set(() if self._writer is None else self._writer.hidden_layers)
        return tuple(sorted(layers.union(self._scorer.hidden_layers if self._chooses else ())))

    def missing(self) -> list[int]:
        """Ids of the blocks that have none of this writer's, in order of archiving."""
        blocks = [block for block in self._core.blocks() if self._first(block) < block.end and self._lacks(block.id)]
        self._chooses = not all(self._chosen(block) for block in blocks)
        return [block.id for block in blocks]

    def _lacks(self, block: int) -> bool:
        try:
            return self._name not in self._core.block_tensor_shapes(block)
        except MemoryNotFoundError:  # forgotten meanwhile: nothing is to be made
            return False

    def _first(self, block: _core.BlockInfo) -> int:
        """Before it are sinks, which nobody chooses."""
        return max(block.begin, self._config.sink_tokens)

    @torch.no_grad()
    def tensors_of(
        self, block: _core.BlockInfo, ids: torch.Tensor, hidden: Mapping[int, torch.Tensor]
    ) -> dict[str, npt.NDArray[Any]]:
        """Of a block's ids [n] and hidden states [n, hidden size] by layer."""
        first = self._first(block)
        ids, hidden = ids[first - block.begin :], {layer: rows[first - block.begin :] for layer, rows in hidden.items()}
        k, v = (rows[:, :, first - block.begin :].float() for rows in self._rows(block))
        chosen = self._chosen(block) or self._choose(first, ids, hidden, k)
        anchors = torch.tensor(sorted(chosen), dtype=torch.int64, device="cpu") - first
        pages = {"page_tokens": self._config.page_tokens, "codec": self._config.codec}
        payload = written_payload(self._writer, hidden, k, v, anchors, **pages)  # type: ignore[arg-type]  # by name
        return tensors_of(block.begin, chosen, payload, None if self._writer is None else self._writer.id)

    def _chosen(self, block: _core.BlockInfo) -> list[int] | None:
        try:
            return chosen_in({TOKENS: self._core.block_tensor(block.id, TOKENS)}, block.begin, block.end)
        except MemoryNotFoundError:
            return None

    def _choose(self, first: int, ids: torch.Tensor, hidden: Mapping[int, torch.Tensor], k: torch.Tensor) -> list[int]:
        tokens = BlockTokens(begin=first, ids=ids, hidden=hidden, keys=lambda: k)
        count = -(-len(ids) // self._config.kept_share)
        return best_tokens(self._scorer.score(tokens), first, [(first, first + len(ids))], count)

    def _rows(self, block: _core.BlockInfo) -> tuple[torch.Tensor, torch.Tensor]:
        """k, v [L, Hkv, n, D] fp32, un-rotated, as the archive has them."""
        core, page_tokens = self._core, self._config.page_tokens
        pages = core.pages_of(block.stream, block.begin, block.end)
        lengths = [page.end - page.begin for page in pages]
        payload = np.zeros(sum(map(core.page_bytes, lengths)), dtype=np.uint8)
        core.read_pages(pages, payload)
        manifest = core.manifest()
        shape = (manifest.layers, manifest.kv_heads, manifest.head_dim)
        rows = plain_rows(
            payload,
            lengths,
            shape,
            core.page_bytes,
            page_tokens=page_tokens,
            codec=self._config.codec,
            dtype=torch.float32,
        )
        return rows.k, rows.v
