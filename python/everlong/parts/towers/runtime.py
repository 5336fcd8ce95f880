"""The towers at work: vectors of blocks while they are read, and of questions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

import everlong._core as _core
from everlong.frame.part import BlockBackfill, Hidden, Needs, PartFindings, Question, Retriever, Tensors, Vectors
from everlong.frame.taps import side_by_side
from everlong.models.pack import Pack, PackError
from everlong.parts.late_interaction import quantize_int8
from everlong.parts.towers.model import TOWERS, LateTowers, groups_of, means

if TYPE_CHECKING:
    from everlong.parts.writer.model import WriterNet


class TowersRuntime(BlockBackfill, Retriever):
    """The towers of a pack over the pages of a memory. Thread-safe."""

    def __init__(self, pack: Pack, page_tokens: int, model: Any = None) -> None:
        """Load the towers.

        `model`'s embeddings make the Detail Tokens, for towers over those. Raises PackError where the pack lacks the
        writer that these towers read.
        """
        part = pack.parts[TOWERS]
        self.towers = LateTowers.of_part(part)
        self.id = part.id
        self.tensor = f"meaning.{part.id}"
        self._page_tokens = page_tokens
        settings = self.towers.settings
        self._writer: WriterNet | None = None
        layers = settings.layers
        if settings.details_size:
            from everlong.parts.writer.model import WRITER, WriterNet

            if WRITER not in pack.parts or pack.parts[WRITER].id != settings.writer:
                raise PackError("the towers of this pack read the Detail Tokens of a writer that is not in it")
            self._writer, self._model = WriterNet.of_part(pack.parts[WRITER]), model
            layers = tuple(sorted({*settings.layers, *self._writer.settings.layers}))
        self.needs = Needs(hidden_layers=layers, question_layers=settings.layers, kinds=("meaning",))

    @torch.no_grad()
    def write_block(self, block: int | None, span: tuple[int, int], ids: torch.Tensor, hidden: Hidden) -> Tensors:
        """Return int8 [vectors, dimension], pages in order."""
        vectors = self.towers.written(self._rows(ids, hidden))
        return {self.tensor: quantize_int8(vectors).numpy()}

    def missing_blocks(self, core: _core.Memory) -> Sequence[int]:
        return core.index.blocks_without_meaning()

    def retrieve(self, question: Question, hidden: Hidden) -> PartFindings:
        query = whole = query_vectors(self.towers, hidden)
        if any(len(rows) > len(query) for rows in question.whole.values()):
            whole = query_vectors(self.towers, question.whole)
        vectors = Vectors(whole, self.tensor, self.towers.settings.group_tokens)
        return PartFindings(query={"meaning_query": query}, vectors=vectors)

    def _rows(self, ids: torch.Tensor, hidden: Hidden) -> torch.Tensor:
        """Return what a block's vectors are made of, on the CPU: means of its states, or as many Detail Tokens."""
        group_tokens = self.towers.settings.group_tokens
        if self._writer is None:
            return means(side_by_side(hidden, self.needs.hidden_layers).float().cpu(), self._page_tokens, group_tokens)
        table = self._model.get_input_embeddings()
        embeddings = table(ids.to(table.weight.device)).float().cpu()
        states = side_by_side(hidden, self._writer.settings.layers).float().cpu()
        return self._writer.details(states, embeddings, groups_of(len(ids), self._page_tokens, group_tokens))


def search_by(meaning: TowersRuntime, core: _core.Memory, gpu: int | None = None, gpu_bytes: int = 0) -> None:
    """Let the memory search by vectors of these towers, on that GPU with at most `gpu_bytes` of its memory."""
    settings = meaning.towers.settings
    core.index.set_meaning(meaning.id, settings.dimension, settings.group_tokens, device=gpu, device_bytes=gpu_bytes)


@torch.no_grad()
def query_vectors(towers: LateTowers, hidden: Hidden) -> npt.NDArray[np.float32]:
    """Return [T, dimension] of a question's hidden states [T, hidden size] by layer. A row's norm is its weight."""
    vectors: npt.NDArray[np.float32] = towers.query_vectors(
        side_by_side(hidden, towers.settings.layers).float().cpu()
    ).numpy()
    return vectors
