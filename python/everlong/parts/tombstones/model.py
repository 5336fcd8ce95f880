"""The heads whose attention to a tombstone says that its span is needed, and the threshold at which it wakes.

They are calibrated on text whose needs are known (measure.py).
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
    weights: tuple[float, ...]  # one for each head
    bias: float
    threshold: float  # a tombstone wakes at this score or above

    def part(self, made: Mapping[str, Any]) -> PackPart:
        """Return the part as a pack keeps it."""
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
    """Return the pack's heads, or None where it has none."""
    return TombstoneHeads.of_part(pack.parts[TOMBSTONES]) if TOMBSTONES in pack.parts else None
