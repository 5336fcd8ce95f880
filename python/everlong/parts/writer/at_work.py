"""Detail Tokens: a block as a few soft tokens in the model's embedding space.

They are written with every block and come back in its place: many blocks fit the slots that the pages of one would
take. A trained writer is a pack's part. Without one, a block's Detail Tokens are means of its own embeddings.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

import everlong._core as _core
from everlong.errors import MemoryNotFoundError
from everlong.frame.details import DetailTokens
from everlong.frame.part import Finds, Hidden, Needs, Offer, Opening, Question, Tensors
from everlong.frame.parts import best_first
from everlong.frame.taps import side_by_side
from everlong.memory.details import tensor_name
from everlong.models.low_rank import AttachedMaps
from everlong.models.pack import Pack, PackPart
from everlong.parts.writer.deciding import odds
from everlong.parts.writer.model import WRITER, WriterNet

if TYPE_CHECKING:
    from everlong.parts.writer import Writer

# Pages to look through for each block that comes back as Detail Tokens: several may be of one block.
_PLACES_A_BLOCK = 4


class DetailWriter(Protocol):
    """Turns a block into Detail Tokens."""

    @property
    def id(self) -> str:
        """Tells its Detail Tokens from another writer's."""

    @property
    def count(self) -> int:
        """N, the most Detail Tokens of a block."""

    @property
    def hidden_layers(self) -> Sequence[int]:
        """The layers whose states it reads, as `HiddenTap` counts them."""

    @property
    def marks(self) -> tuple[Sequence[int], Sequence[int]] | None:
        """Ids between which the Detail Tokens of all blocks are read; None: each block has marks of its own."""

    @property
    def decides(self) -> bool:
        """Whether it learned to say from its Detail Tokens which questions they answer."""

    def details(self, states: torch.Tensor, embeddings: torch.Tensor) -> torch.Tensor:
        """Return D [n, hidden size], 1 <= n <= N, of a block's L tokens. Called by several threads at once.

        `states` are [L, S] of its layers side by side (S is 0 without layers), `embeddings` [L, hidden size].
        """

    def odds(self, question: torch.Tensor, details: torch.Tensor) -> torch.Tensor:
        """Return the log odds [B] that D [B, n, hidden size] answer a question's embeddings [T, hidden size].

        Raises ValueError where the writer does not decide.
        """


class MeanPool:
    """The untrained writer: Detail Tokens are the means of N equal runs of the block's embeddings."""

    hidden_layers: tuple[int, ...] = ()
    decides = False
    marks: tuple[Sequence[int], Sequence[int]] | None = None

    def __init__(self, count: int) -> None:
        self.count = count

    @property
    def id(self) -> str:
        return f"mean-{self.count}"

    def details(self, states: torch.Tensor, embeddings: torch.Tensor) -> torch.Tensor:
        """Return the means. Run i of N is tokens [i L / N, (i + 1) L / N), rounded down.

        A block of fewer than N tokens gives these themselves.
        """
        length = len(embeddings)
        count = min(self.count, length)
        cuts = [index * length // count for index in range(count + 1)]
        runs = torch.split(embeddings.float(), [end - begin for begin, end in itertools.pairwise(cuts)])
        return torch.stack([run.mean(dim=0) for run in runs])

    def odds(self, question: torch.Tensor, details: torch.Tensor) -> torch.Tensor:
        raise ValueError("means of embeddings cannot decide: there is no trained writer")


class TrainedDetails:
    """A pack's writer, asked for `count` Detail Tokens of a block."""

    def __init__(self, part: PackPart, count: int) -> None:
        self._writer = WriterNet.of_part(part)
        self.count = count
        self.id = f"{part.id}-{count}"
        self.hidden_layers = self._writer.settings.layers
        config = self._writer.settings
        self.marks = (config.opening, config.closing) if config.opening and config.closing else None
        self.decides = self._writer.decider is not None

    @torch.no_grad()
    def details(self, states: torch.Tensor, embeddings: torch.Tensor) -> torch.Tensor:
        """Return the Detail Tokens; a block of fewer tokens than N gets one for each."""
        return self._writer.details(states.float().cpu(), embeddings.float().cpu(), min(self.count, len(embeddings)))

    @torch.no_grad()
    def odds(self, question: torch.Tensor, details: torch.Tensor) -> torch.Tensor:
        asked = question.float().cpu().expand(len(details), -1, -1)
        return odds(self._writer.verdicts(asked, torch.ones(asked.shape[:2], dtype=torch.bool), details.float()))


def detail_writer(pack: Pack | None, count: int) -> MeanPool | TrainedDetails:
    """Return the writer of a pack where it has one, or else means of embeddings."""
    if pack is None or WRITER not in pack.parts:
        return MeanPool(count)
    return TrainedDetails(pack.parts[WRITER], count)


class BlockDetails:
    """Stores a tensor F16 [n, hidden size] with every block, and recalls by it. Thread-safe to write."""

    def __init__(
        self, writer: DetailWriter, opening: Opening, settings: Writer, maps: AttachedMaps | None = None
    ) -> None:
        """Set up for one memory. `maps` learned to read what comes back."""
        self.settings = settings
        self._writer, self._model, self._core = writer, opening.model, opening.core
        self._config = opening.config
        self.tensor = tensor_name(writer.id)
        self.needs = Needs(hidden_layers=tuple(writer.hidden_layers))
        self.details = DetailTokens(opening.core, opening.model, opening.tokenizer, self.tensor, writer.marks)
        self.decides = writer.decides
        if maps is not None:
            self.answering = lambda frame: maps.at_work()

    # --- a block is closed

    @torch.no_grad()
    def block(self, block: int | None, span: tuple[int, int], ids: torch.Tensor, hidden: Hidden) -> Tensors:
        table, layers = self._model.get_input_embeddings(), self.needs.hidden_layers
        embeddings = table(ids.to(table.weight.device))
        states = side_by_side(hidden, layers) if layers else embeddings[:, :0]
        return {self.tensor: self._writer.details(states, embeddings).half().cpu().numpy()}

    def lacks(self, core: _core.Memory) -> list[int]:
        return [block.id for block in core.blocks.infos() if not self._has(core, block.id)]

    def _has(self, core: _core.Memory, block: int) -> bool:
        try:
            return self.details.has(block)
        except MemoryNotFoundError:  # forgotten meanwhile: nothing is to be made
            return True

    # --- a question is searched for

    def asked(self, question: Question, hidden: Hidden) -> Finds:
        added: list[tuple[_core.PageRef, float]] = []
        if self.settings.rerank > 0:
            added = self.added_scores(question.prompt.ids[question.prompt.question], question.first())
        count = self.settings.blocks_recalled(self._config)
        if count == 0:
            return Finds(added=added)
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
        return Finds(added=added, offers=tuple(best.values())[:count])

    def added_scores(self, question: torch.Tensor, result: _core.SearchResult) -> list[tuple[_core.PageRef, float]]:
        """Return what is added to the scores of the pages that a search named, for a question's ids [T].

        It is the log odds that the block says what is asked for. Their mean over the blocks that were looked at is
        subtracted, as perhaps no block seems to answer the question. Blocks without Detail Tokens of this writer get
        nothing.
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
        return [(page, self.settings.rerank * (odds[page.block] - mean)) for page in pages if page.block in odds]

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
            if self.tensor not in self._core.blocks.tensor_shapes(block):
                return None
            return torch.from_numpy(self._core.blocks.tensor(block, self.tensor).astype(np.float32))
        except MemoryNotFoundError:  # forgotten since the search
            return None
