"""`<RETRIEVE>`, learned: whether a model says at the end of a question that it wants something recalled.

It is a row of the output embeddings for the token, and low-rank maps (models/low_rank.py) that work while it decides.
The row stands beside the model's own: neither model nor tokenizer is changed. The token is said where it is likelier
than all the others together. Then the question's own queries search, those of the towers among them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from everlong.models.low_rank import LowRankMaps
from everlong.models.pack import PackedModule, PackPart

RETRIEVE = "retrieve"
MAPS = "maps."


@dataclasses.dataclass(frozen=True)
class RetrieveSettings:
    hidden_size: int
    threshold: float = 0.5  # least probability at which the token is said


class RetrieveRow(PackedModule):
    """The token's row of the output embeddings. Thread-safe to use."""

    settings: RetrieveSettings
    KEPT_AS = torch.float32
    BESIDE = ("maps",)

    def __init__(self, settings: RetrieveSettings) -> None:
        super().__init__()
        self.settings = settings
        self.row = torch.nn.Linear(settings.hidden_size, 1)
        torch.nn.init.zeros_(self.row.weight)
        torch.nn.init.zeros_(self.row.bias)

    def forward(self, state: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Return the log odds [...] that the token is said.

        `state` [..., hidden size] is what the output embeddings get, `logits` [..., V] are those of all other tokens.
        """
        own: torch.Tensor = self.row(state.float())[..., 0]
        return own - logits.float().logsumexp(dim=-1)

    def part_with(self, maps: LowRankMaps, made: Mapping[str, Any]) -> PackPart:
        """Return the part as a pack keeps it, with the maps beside the row."""
        part, kept = self.part(made), maps.part(made)
        tensors = {**part.tensors, **{MAPS + name: tensor for name, tensor in kept.tensors.items()}}
        return PackPart(tensors, {**part.settings, "maps": dict(kept.settings)}, made)
