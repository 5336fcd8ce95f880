"""The writer: it turns a block into a few Detail Tokens, soft tokens that come back in the block's place."""

from __future__ import annotations

import dataclasses
import warnings
from typing import TYPE_CHECKING

from everlong.frame.part import LoadContext, PartSettings
from everlong.parts.writer.detail_writers import detail_writer
from everlong.parts.writer.model import WRITER, reading_details
from everlong.parts.writer.runtime import AdaptedBlockDetails, BlockDetails

if TYPE_CHECKING:
    from everlong.config import MemoryConfig


@dataclasses.dataclass(frozen=True)
class Writer(PartSettings, group="writer", least={"tokens": 1, "blocks": 1, "rerank": 0}):
    """The writer of the model's pack. Without one, Detail Tokens are the means of equal runs of a
    block's embeddings.
    """

    tokens: int = 32  # number of Detail Tokens that a block is written with (N)
    # Most blocks that come back as Detail Tokens for a question (`answer.recall_mode` "detail", "both")
    blocks: int = 16
    # Weight in nats of its decision in the fused scores of a block's pages. It decides, by a block's Detail Tokens
    # alone, whether the block says what the question asks for. 0: off. Needs a pack whose writer learned to decide.
    rerank: float = 0.0
    maps: bool = True  # attach the maps that learned to read Detail Tokens when some come back

    @classmethod
    def between_questions(cls) -> frozenset[str]:
        return frozenset({"blocks", "rerank"})

    @property
    def detail_tokens(self) -> int:
        """Most Detail Tokens of a block."""
        return self.tokens

    def blocks_recalled(self, config: MemoryConfig) -> int:
        """Return how many blocks come back as Detail Tokens for a question: `blocks`, as far as there is room."""
        mode, recalled = config.answer.recall_mode, config.frame.recalled_tokens
        if mode not in ("detail", "both"):
            return 0
        return min(self.blocks, (recalled if mode == "detail" else recalled // 2) // config.detail_slots)

    def load(self, opening: LoadContext) -> BlockDetails:
        writer, config = detail_writer(opening.pack, self.tokens), opening.config
        trained = opening.pack is not None and WRITER in opening.pack.parts
        if not trained and config.answer.recall_mode in ("detail", "both"):
            warnings.warn(
                f"answer.recall_mode={config.answer.recall_mode!r}: no writer was trained for this model (`everlong "
                "train writer`). Means of embeddings come back instead, which may confuse the model",
                stacklevel=5,
            )
        maps = None
        if trained and self.maps and self.blocks_recalled(config) > 0:
            assert opening.pack is not None
            maps = reading_details(opening.pack.parts[WRITER], opening.model)
        if maps is None:
            found = BlockDetails(writer, opening, self)
        else:
            found = AdaptedBlockDetails(writer, opening, self, maps)
        if self.rerank and not found.decides:
            raise ValueError(
                "writer.rerank: no writer that decides was trained for this model; `everlong train writer --why 1` "
                "trains one"
            )
        return found
