"""A Trimmer with drawn weights, and the attention that it learns from."""

from __future__ import annotations

import copy
from typing import Any

import torch

from everlong.parts.trimmer.model import TrimmerNet, TrimmerSettings

LAYERS, SIZE = (1, 2), 12

WIDTH = len(LAYERS) * SIZE

SETTINGS = TrimmerSettings(LAYERS, SIZE, units=6, age_weight=0.2, age_tokens=10)


def drawn_trimmer(seed: int = 0, settings: TrimmerSettings = SETTINGS) -> TrimmerNet:
    torch.manual_seed(seed)
    trimmer = TrimmerNet(settings)
    trimmer.center.normal_()
    trimmer.scale.uniform_(0.5, 2)
    return trimmer.eval().requires_grad_(requires_grad=False)


def eager_attentions(model: Any, ids: torch.Tensor) -> list[torch.Tensor]:
    """[H, n, n] of every layer, as transformers gives them back."""
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    with torch.no_grad():
        return [layer[0].double() for layer in eager(ids[None], output_attentions=True).attentions]
