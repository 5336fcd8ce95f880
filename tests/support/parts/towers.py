"""Towers with drawn weights."""

from __future__ import annotations

from typing import Any

import torch

from everlong.models.early_exit import early_exit_states
from everlong.models.pack import Pack, pack_of
from everlong.parts.towers.model import LateTowers, TowerSettings

LAYERS = (1, 2)


def drawn_pack(model: Any, seed: int = 0) -> Pack:
    """Make a pack with towers for `model`."""
    torch.manual_seed(seed)
    towers = LateTowers(TowerSettings(LAYERS, model.config.hidden_size, dimension=32))
    # States of tiny models differ little from token to token, so what all have in common is taken away.
    with torch.no_grad():
        ids = torch.randint(97, 123, (400,))
        states = torch.cat([early_exit_states(model, ids, LAYERS)[layer] for layer in LAYERS], dim=-1)
        towers.center.copy_(states.mean(0))
        towers.scale.copy_(1 / states.std(0))
        towers.reader.weight.copy_(towers.writer.weight)  # alike tokens meet
    return pack_of(model, {"towers": towers.part({"data": {"drawn": 0}})})
