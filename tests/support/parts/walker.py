"""A Walker with drawn weights."""

from __future__ import annotations

import torch

from everlong.parts.walker.model import WalkerNet, WalkerSettings


def some_walker(seed: int = 0) -> WalkerNet:
    torch.manual_seed(seed)
    return WalkerNet(WalkerSettings(units=8))
