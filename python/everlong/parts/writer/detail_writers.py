"""Writers of Detail Tokens: a pack's, and means of embeddings without one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol

import torch

from everlong.models.pack import Pack, PackPart
from everlong.parts.writer.decider import odds
from everlong.parts.writer.model import WRITER, WriterNet


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
