"""The part `retrieve` with drawn weights."""

from __future__ import annotations

from typing import Any

import torch

from everlong.models.fingerprint import weights_fingerprint
from everlong.models.low_rank import LowRankMaps, MapSettings, mapped_layers
from everlong.models.pack import Pack
from everlong.parts.retrieve.model import RETRIEVE, RetrieveRow, RetrieveSettings


def drawn_part(model: Any, bias: float = 0.0, threshold: float = 0.5) -> Pack:
    """A row and maps of random numbers."""
    torch.manual_seed(3)
    row = RetrieveRow(RetrieveSettings(model.config.hidden_size, threshold))
    maps = LowRankMaps(MapSettings(2), mapped_layers(model))
    for up in maps.up:
        up.data.normal_(std=0.05)
    row.row.weight.data.normal_()
    row.row.bias.data.fill_(bias)
    return Pack(weights_fingerprint(model), "", {RETRIEVE: row.part_with(maps, {})})
