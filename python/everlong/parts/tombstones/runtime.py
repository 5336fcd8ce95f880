"""The score by which a tombstone wakes: how much chosen heads of the newest token attend to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from everlong.frame.part import Hidden, Needs, TombstoneScorer
from everlong.parts.tombstones.model import TombstoneHeads

if TYPE_CHECKING:
    from everlong.parts.tombstones import Tombstones

LEAST_MASS = 1e-9  # smaller masses count as this one


class TombstoneRuntime(TombstoneScorer):
    """Scores a tombstone: bias + the sum over heads of weight x log(mass)."""

    def __init__(self, heads: TombstoneHeads, settings: Tombstones) -> None:
        self.settings = settings
        self.needs = Needs(heads=heads.heads)
        self._threshold = heads.threshold if settings.threshold is None else settings.threshold
        self._weights = torch.tensor(heads.weights, dtype=torch.float32, device="cpu")
        self._bias = heads.bias

    @property
    def threshold(self) -> float:
        return self._threshold

    @property
    def recalls_span(self) -> bool:
        """Whether the tombstone's span comes back, rather than what the newest tokens' queries find."""
        return self.settings.recall == "span"

    def score_tombstones(self, step: int, hidden: Hidden, attention: torch.Tensor) -> Sequence[float]:
        scores: list[float] = tombstone_scores(attention, self._weights, self._bias).tolist()
        return scores


def tombstone_scores(mass: torch.Tensor, weights: torch.Tensor, bias: float) -> torch.Tensor:
    """Return scores [..., tombstones] of masses [..., heads, tombstones] by weights [heads]."""
    logs = mass.clamp_min(LEAST_MASS).log()
    return (logs * weights[:, None]).sum(dim=-2) + bias
