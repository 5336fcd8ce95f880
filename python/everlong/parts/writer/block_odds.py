"""How likely blocks say what a question asks for, by their Detail Tokens alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

import everlong._core as _core
from everlong.errors import MemoryNotFoundError
from everlong.parts.writer.detail_writers import DetailWriter


class BlockOdds:
    """The odds of one memory's blocks, by a writer that learned to decide."""

    def __init__(self, writer: DetailWriter, model: Any, core: _core.Memory, tensor: str) -> None:
        """tensor: the name of a block's Detail Tokens of this writer."""
        self._writer, self._model, self._core, self._tensor = writer, model, core, tensor

    def added_scores(
        self, question: torch.Tensor, result: _core.SearchResult, weight: float
    ) -> list[tuple[_core.PageRef, float]]:
        """Return what is added to the scores of the pages that a search named, for a question's ids [T].

        It is `weight` times the log odds that the block says what is asked for. Their mean over the blocks that were
        looked at is subtracted, as perhaps no block seems to answer the question. Blocks without Detail Tokens of this
        writer get nothing.
        """
        pages = [
            page
            for group in result.groups
            for page, score in zip(group.pages, group.page_scores, strict=True)
            if math.isfinite(score)
        ]
        odds = self.odds_of_blocks(question, list(dict.fromkeys(page.block for page in pages)))
        if not odds:
            return []
        mean = sum(odds.values()) / len(odds)
        return [(page, weight * (odds[page.block] - mean)) for page in pages if page.block in odds]

    def odds_of_blocks(self, question: torch.Tensor, blocks: Sequence[int]) -> dict[int, float]:
        """Return by block the log odds that it says what ids [T] ask for. No page is loaded, and no model computes."""
        by_count: dict[int, list[tuple[int, torch.Tensor]]] = {}
        for block in blocks:
            own = self._details_of(block)
            if own is not None:
                by_count.setdefault(len(own), []).append((block, own))
        found: dict[int, float] = {}
        for some in by_count.values():
            odds = self.odds(question, torch.stack([own for _, own in some]))
            found |= {block: float(one) for (block, _), one in zip(some, odds, strict=True)}
        return found

    @torch.no_grad()
    def odds(self, question: torch.Tensor, details: torch.Tensor) -> torch.Tensor:
        """Return the log odds [B] that blocks say, by their D [B, n, hidden size], what ids [T] ask for."""
        table = self._model.get_input_embeddings()
        return self._writer.odds(table(question.to(table.weight.device)), details)

    def _details_of(self, block: int) -> torch.Tensor | None:
        try:
            if self._tensor not in self._core.blocks.tensor_shapes(block):
                return None
            return torch.from_numpy(self._core.blocks.tensor(block, self._tensor).astype(np.float32))
        except MemoryNotFoundError:  # forgotten since the search
            return None
