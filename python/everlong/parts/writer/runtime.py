"""Detail Tokens: a block as a few soft tokens in the model's embedding space.

They are written with every block and come back in its place: many blocks fit the slots that the pages of one would
take. A trained writer is a pack's part. Without one, a block's Detail Tokens are means of its own embeddings.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch

import everlong._core as _core
from everlong.errors import MemoryNotFoundError
from everlong.frame.detail_tokens import DetailTokens
from everlong.frame.part import (
    BlockBackfill,
    DetailSource,
    Hidden,
    LoadContext,
    ModelAdapter,
    Needs,
    Offer,
    PartFindings,
    Question,
    Retriever,
    Tensors,
)
from everlong.frame.parts import best_first
from everlong.frame.taps import side_by_side
from everlong.memory.detail_tensors import tensor_name
from everlong.models.low_rank import AttachedMaps
from everlong.parts.writer.block_odds import BlockOdds
from everlong.parts.writer.detail_writers import DetailWriter

if TYPE_CHECKING:
    from everlong.parts.writer import Writer

# Pages to look through for each block that comes back as Detail Tokens: several may be of one block.
_PLACES_A_BLOCK = 4


class BlockDetails(BlockBackfill, Retriever, DetailSource):
    """Stores a tensor F16 [n, hidden size] with every block, and recalls by it. Thread-safe to write."""

    def __init__(self, writer: DetailWriter, opening: LoadContext, settings: Writer) -> None:
        self.settings = settings
        self._writer, self._model, self._core = writer, opening.model, opening.core
        self._config = opening.config
        self.tensor = tensor_name(writer.id)
        self.needs = Needs(hidden_layers=tuple(writer.hidden_layers))
        self._details = DetailTokens(opening.core, opening.model, opening.tokenizer, self.tensor, writer.marks)
        self.decides = writer.decides
        self.block_odds = BlockOdds(writer, opening.model, opening.core, self.tensor)

    @property
    def details(self) -> DetailTokens:
        return self._details

    # --- a block is closed

    @torch.no_grad()
    def write_block(self, block: int | None, span: tuple[int, int], ids: torch.Tensor, hidden: Hidden) -> Tensors:
        table, layers = self._model.get_input_embeddings(), self.needs.hidden_layers
        embeddings = table(ids.to(table.weight.device))
        states = side_by_side(hidden, layers) if layers else embeddings[:, :0]
        return {self.tensor: self._writer.details(states, embeddings).half().cpu().numpy()}

    def missing_blocks(self, core: _core.Memory) -> list[int]:
        return [block.id for block in core.blocks.infos() if not self._has(core, block.id)]

    def _has(self, core: _core.Memory, block: int) -> bool:
        try:
            return self._details.has(block)
        except MemoryNotFoundError:  # forgotten meanwhile: nothing is to be made
            return True

    # --- a question is searched for

    def retrieve(self, question: Question, hidden: Hidden) -> PartFindings:
        added: list[tuple[_core.PageRef, float]] = []
        if self.settings.rerank > 0:
            ids = question.prompt.ids[question.prompt.question]
            added = self.block_odds.added_scores(ids, question.first(), self.settings.rerank)
        count = self.settings.blocks_recalled(self._config)
        if count == 0:
            return PartFindings(added=added)
        found = question.search(count * _PLACES_A_BLOCK, added)
        # Pages that were found beside each other are one group, which may reach over blocks.
        hits = [
            Offer(score, page, tuple(group.found_by), as_details=True)
            for group in found.groups
            for page, score in zip(group.pages, group.page_scores, strict=True)
            if math.isfinite(score)
        ]
        best: dict[int, Offer] = {}
        for hit in best_first(hits):
            best.setdefault(hit.page.block, hit)
        return PartFindings(added=added, offers=tuple(best.values())[:count])


class AdaptedBlockDetails(BlockDetails, ModelAdapter):
    """Does as BlockDetails, with maps beside the model that learned to read what comes back."""

    def __init__(self, writer: DetailWriter, opening: LoadContext, settings: Writer, maps: AttachedMaps) -> None:
        super().__init__(writer, opening, settings)
        self._maps = maps

    def adapt(self, frame: Any) -> AbstractContextManager[None]:
        return self._maps.active()
