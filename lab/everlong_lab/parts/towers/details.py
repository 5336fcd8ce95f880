"""Passages as the Detail Tokens of a writer, which towers may read in place of states."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from everlong.frame.taps import side_by_side
from everlong.models.pack import PackPart
from everlong.models.soft_tokens import embedded


@dataclasses.dataclass(frozen=True)
class DetailsOfPassages:
    """One Detail Token for every `group_tokens` tokens, each passage by itself."""

    id: str  # id of the writer's part
    writer: Any
    group_tokens: int

    @property
    def layers(self) -> tuple[int, ...]:
        layers: tuple[int, ...] = self.writer.settings.layers
        return layers

    @torch.no_grad()
    def rows(self, model: Any, ids: Sequence[torch.Tensor], states: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """Return [n, E] for pieces of ids that follow each other, whose states are [tokens, hidden size] by layer."""
        read = side_by_side(states, self.layers).float().cpu()
        found, at = [], 0
        for piece in ids:
            own = read[at : at + len(piece)]
            found.append(self.writer.details(own, embedded(model, piece).float().cpu(), self.count(len(piece))))
            at += len(piece)
        return torch.cat(found)

    def count(self, tokens: int) -> int:
        return -(-tokens // self.group_tokens)


def details_of(writer: PackPart, group_tokens: int) -> DetailsOfPassages:
    from everlong.parts.writer.model import WriterNet

    return DetailsOfPassages(writer.id, WriterNet.of_part(writer), group_tokens)
