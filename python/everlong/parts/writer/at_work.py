"""Detail Tokens: a block as a few soft tokens in the model's embedding space (design-four-mi100 2.3, L2).

They are written with every block, and come back in its stead: many blocks in the slots that the pages of one would
take. A trained writer is a pack's part; without one a block's Detail Tokens are means of its own embeddings.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy.typing as npt
import torch

import everlong._core as _core
from everlong.errors import MemoryNotFoundError
from everlong.frame.taps import side_by_side
from everlong.memory.details import are_details, tensor_name
from everlong.models.pack import Pack, PackPart
from everlong.parts.writer.deciding import odds
from everlong.parts.writer.model import WRITER, Writer


class DetailWriter(Protocol):
    """Turns a block into Detail Tokens."""

    @property
    def id(self) -> str:
        """What tells its Detail Tokens from another writer's."""

    @property
    def count(self) -> int:
        """N: of a block, at most."""

    @property
    def hidden_layers(self) -> Sequence[int]:
        """Whose states it reads, as `HiddenTap` counts them."""

    @property
    def marks(self) -> tuple[Sequence[int], Sequence[int]] | None:
        """Ids between which the D of several blocks are read, all together; None: each block has marks of its own."""

    @property
    def decides(self) -> bool:
        """Whether it learned to say of its D which questions they answer."""

    def details(self, states: torch.Tensor, embeddings: torch.Tensor) -> torch.Tensor:
        """D [n, hidden size], 1 <= n <= N, of a block's L tokens: states [L, S] of its layers side by side (S is 0
        without layers) and embeddings [L, hidden size]. Called by several threads at once."""

    def odds(self, question: torch.Tensor, details: torch.Tensor) -> torch.Tensor:
        """Log odds [B] that D [B, n, hidden size] answer a question's embeddings [T, hidden size]. ValueError of one
        that does not decide."""


class MeanPool:
    """The writer that was never trained: the means of N equal runs of the block's embeddings."""

    hidden_layers: tuple[int, ...] = ()
    decides = False
    marks: tuple[Sequence[int], Sequence[int]] | None = None

    def __init__(self, count: int) -> None:
        self.count = count

    @property
    def id(self) -> str:
        return f"mean-{self.count}"

    def details(self, states: torch.Tensor, embeddings: torch.Tensor) -> torch.Tensor:
        """Run i of N is tokens [i L / N, (i + 1) L / N), rounded down; of a block of fewer than N tokens themselves."""
        length = len(embeddings)
        count = min(self.count, length)
        cuts = [index * length // count for index in range(count + 1)]
        runs = torch.split(embeddings.float(), [end - begin for begin, end in itertools.pairwise(cuts)])
        return torch.stack([run.mean(dim=0) for run in runs])

    def odds(self, question: torch.Tensor, details: torch.Tensor) -> torch.Tensor:
        raise ValueError("means of embeddings decide nothing")


class TrainedDetails:
    """A pack's writer (parts/writer), asked for so many Detail Tokens of a block."""

    def __init__(self, part: PackPart, count: int) -> None:
        self._writer = Writer.of_part(part)
        self.count = count
        self.id = f"{part.id}-{count}"
        self.hidden_layers = self._writer.config.layers
        config = self._writer.config
        self.marks = (config.opening, config.closing) if config.opening and config.closing else None
        self.decides = self._writer.decider is not None

    @torch.no_grad()
    def details(self, states: torch.Tensor, embeddings: torch.Tensor) -> torch.Tensor:
        """Of a block of fewer tokens than N, one each."""
        return self._writer.details(states.float().cpu(), embeddings.float().cpu(), min(self.count, len(embeddings)))

    @torch.no_grad()
    def odds(self, question: torch.Tensor, details: torch.Tensor) -> torch.Tensor:
        asked = question.float().cpu().expand(len(details), -1, -1)
        return odds(self._writer.verdicts(asked, torch.ones(asked.shape[:2], dtype=torch.bool), details.float()))


def detail_writer(pack: Pack | None, count: int) -> MeanPool | TrainedDetails:
    """The writer of a pack, where it has one, else means of embeddings."""
    if pack is None or WRITER not in pack.parts:
        return MeanPool(count)
    return TrainedDetails(pack.parts[WRITER], count)


class BlockDetails:
    """What a writer stores with a block (frame/block_writers.py): a tensor F16 [n, hidden size]. Thread-safe."""

    def __init__(self, writer: DetailWriter, model: Any) -> None:
        self._writer = writer
        self._model = model
        self.tensor = tensor_name(writer.id)
        self.hidden_layers = tuple(writer.hidden_layers)
        self.marks = writer.marks
        self.decides = writer.decides

    @torch.no_grad()
    def odds(self, question: torch.Tensor, details: torch.Tensor) -> torch.Tensor:
        """Log odds [B] that blocks say, by their D [B, n, hidden size], what ids [T] ask for."""
        table = self._model.get_input_embeddings()
        return self._writer.odds(table(question.to(table.weight.device)), details)

    @torch.no_grad()
    def tensors(self, ids: torch.Tensor, hidden: Mapping[int, torch.Tensor]) -> dict[str, npt.NDArray[Any]]:
        """Of a block's ids [L] and hidden states [L, hidden size] by layer."""
        table = self._model.get_input_embeddings()
        embeddings = table(ids.to(table.weight.device))
        states = side_by_side(hidden, self.hidden_layers) if self.hidden_layers else embeddings[:, :0]
        return {self.tensor: self._writer.details(states, embeddings).half().cpu().numpy()}

    def missing_in(self, core: _core.Memory) -> list[int]:
        """Ids of the blocks that have none of this writer's, in order of archiving."""
        return [block.id for block in core.blocks() if not self._has(core, block.id)]

    def _has(self, core: _core.Memory, block: int) -> bool:
        try:
            dtype, shape = core.block_tensor_shapes(block).get(self.tensor, ("", ()))
        except MemoryNotFoundError:  # forgotten meanwhile: nothing is to be made
            return True
        hidden_size = self._model.get_input_embeddings().embedding_dim
        return are_details(dtype, shape, hidden_size)
