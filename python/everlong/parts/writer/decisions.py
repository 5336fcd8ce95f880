"""Head A in a search: of the pages that are named first, those come first whose block says what the question asks for.

A block's Detail Tokens are all that is looked at (parts/writer): no page is loaded, and no model computes. What
is added to log-odds, as fused scores are (index/fusion.h), is the decision's own, less its mean over the blocks that
were looked at: a question may be one that no block seems to answer.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

import everlong._core as _core
from everlong.errors import MemoryNotFoundError
from everlong.parts.writer.at_work import BlockDetails


@dataclasses.dataclass(frozen=True)
class BlockDecisions:
    """By the Detail Tokens of a memory's blocks. Used by the frame's thread alone."""

    core: _core.Memory
    details: BlockDetails
    weight: float  # of a nat

    def added_scores(self, question: torch.Tensor, result: _core.SearchResult) -> list[tuple[_core.PageRef, float]]:
        """What `core.search` is to add to the scores of the pages that it named, of ids [T]; nothing for blocks without
        Detail Tokens of this writer.
        """
        pages = [
            page
            for group in result.groups
            for page, score in zip(group.pages, group.page_scores, strict=True)
            if np.isfinite(score)
        ]
        odds = self.odds(question, list(dict.fromkeys(page.block for page in pages)))
        if not odds:
            return []
        mean = sum(odds.values()) / len(odds)
        return [(page, self.weight * (odds[page.block] - mean)) for page in pages if page.block in odds]

    def odds(self, question: torch.Tensor, blocks: list[int]) -> dict[int, float]:
        """Log odds, by block, that it says what is asked for."""
        by_count: dict[int, list[tuple[int, torch.Tensor]]] = {}
        for block in blocks:
            own = self._details(block)
            if own is not None:
                by_count.setdefault(len(own), []).append((block, own))
        found: dict[int, float] = {}
        for some in by_count.values():
            odds = self.details.odds(question, torch.stack([own for _, own in some]))
            found |= {block: float(one) for (block, _), one in zip(some, odds, strict=True)}
        return found

    def _details(self, block: int) -> torch.Tensor | None:
        try:
            if self.details.tensor not in self.core.block_tensor_shapes(block):
                return None
            return torch.from_numpy(self.core.block_tensor(block, self.details.tensor).astype(np.float32))
        except MemoryNotFoundError:  # forgotten since the search
            return None
