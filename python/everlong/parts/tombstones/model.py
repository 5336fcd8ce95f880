"""What a tombstone wakes by: heads whose attention to it says that what it stands for is needed, and from when on.

design-one-consumer-gpu 3.2.3, "Tombstone Activation"; design-four-mi100 2.1. Calibrated on text whose needs are known
(parts/tombstones).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from everlong.models.pack import Pack, PackPart

TOMBSTONES = "tombstones"


@dataclasses.dataclass(frozen=True)
class TombstoneHeads:
    """A tombstone's score is bias + the sum over heads of weight x log(mass on its slot)."""

    heads: tuple[tuple[int, int], ...]  # layer, as the frame counts them, and query head
    weights: tuple[float, ...]  # one for each
    bias: float
    threshold: float  # a score of so much or more wakes

    def part(self, made: Mapping[str, Any]) -> PackPart:
        """As a pack keeps it."""
        tensors = {
            "heads": torch.tensor(self.heads, dtype=torch.int32),
            "weights": torch.tensor(self.weights, dtype=torch.float32),
        }
        return PackPart(tensors, {"bias": self.bias, "threshold": self.threshold}, made)

    @classmethod
    def of_part(cls, part: PackPart) -> TombstoneHeads:
        heads = tuple((int(layer), int(head)) for layer, head in part.tensors["heads"].tolist())
        weights = tuple(float(weight) for weight in part.tensors["weights"].tolist())
        return cls(heads, weights, float(part.settings["bias"]), float(part.settings["threshold"]))


def tombstone_heads_of(pack: Pack) -> TombstoneHeads | None:
    """Those of a pack, None where it has none."""
    return TombstoneHeads.of_part(pack.parts[TOMBSTONES]) if TOMBSTONES in pack.parts else None
