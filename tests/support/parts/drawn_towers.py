"""Towers with drawn weights, without a model."""

from __future__ import annotations

import torch

from everlong.parts.towers.model import LateTowers, TowerSettings

WIDTH, LAYERS = 24, (1, 2)

SETTINGS = TowerSettings(LAYERS, WIDTH // 2, dimension=16)


def drawn_towers(seed: int = 0) -> LateTowers:
    torch.manual_seed(seed)
    towers = LateTowers(SETTINGS)
    towers.center.normal_()
    towers.scale.uniform_(0.5, 2)
    return towers.eval().requires_grad_(requires_grad=False)
