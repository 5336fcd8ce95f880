"""The Walker's policy: to which page a walk through a memory goes next, or that it ends.

It is a hidden layer over shares that hold for any model and any memory (cpp/graph/include/everlong/graph/walker.h):

    logit = b2 + w2 . max(0, W1 f + b1)        for every way onward and for ending; the largest is taken

The walk itself is native.
"""

from __future__ import annotations

import dataclasses
import functools

import torch

import everlong._core as _core
from everlong.models.pack import Pack, PackedModule, shipped_packs

WALKER = "walker"
FEATURES: tuple[str, ...] = _core.WALK_FEATURES


@dataclasses.dataclass(frozen=True)
class WalkerSettings:
    features: tuple[str, ...] = FEATURES  # in the order of the weights
    units: int = 32  # width of the hidden layer
    # The budget that it was trained for; a search sets the loads by its groups.
    hops: int = 3
    nodes: int = 512


class WalkerNet(PackedModule):
    """Logits [n] of features [n, FEATURES]."""

    settings: WalkerSettings
    KEPT_AS = torch.float32

    def __init__(self, settings: WalkerSettings | None = None) -> None:
        super().__init__()
        self.settings = settings or WalkerSettings()
        if self.settings.units < 1:
            raise ValueError(f"units are {self.settings.units}, expected at least 1")
        if self.settings.features != FEATURES:
            raise ValueError(f"a Walker over {', '.join(self.settings.features)}; this release sees other features")
        self.inner = torch.nn.Linear(len(FEATURES), self.settings.units)
        self.outer = torch.nn.Linear(self.settings.units, 1)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.outer(torch.relu(self.inner(features)))[:, 0]
        return logits

    def policy(self) -> _core.WalkerPolicy:
        """Return the same policy for the core."""
        inner, inner_bias, outer, outer_bias = (
            tensor.detach().float().cpu().contiguous().numpy()
            for tensor in (self.inner.weight, self.inner.bias, self.outer.weight[0], self.outer.bias)
        )
        return _core.WalkerPolicy(inner, inner_bias, outer, float(outer_bias[0]))


def walker_of(pack: Pack) -> WalkerNet | None:
    """Return the pack's Walker, or None where it has none."""
    return WalkerNet.of_part(pack.parts[WALKER]) if WALKER in pack.parts else None


@functools.cache
def shipped_walker() -> WalkerNet | None:
    """Return the shipped Walker. It was trained for another model, but its features are the same for any."""
    return next((WalkerNet.of_part(pack.parts[WALKER]) for pack in shipped_packs() if WALKER in pack.parts), None)
