"""A small KV writer: settings, blocks and a Trimmer for it."""

from __future__ import annotations

from typing import Any

import torch

from everlong.parts.kv_writer.model import KvWriterSettings
from everlong.parts.latents import LatentSettings
from everlong.parts.trimmer.model import TrimmerNet, TrimmerSettings

LAYERS, SIZE = (1, 2), 12

READER = LatentSettings(LAYERS, SIZE, width=16, heads=2, depth=1, inner=24)

CONFIG = KvWriterSettings(READER, kv_layers=3, kv_heads=2, head_dim=4, rank=5, merging_heads=2)


def blocks(count: int, length: int, anchors: int, seed: int = 1) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(seed)
    chosen = torch.stack([torch.randperm(length)[:anchors].sort().values for _ in range(count)])
    k, v = torch.randn(2, count, CONFIG.kv_layers, CONFIG.kv_heads, length, CONFIG.head_dim)
    return torch.randn(count, length, len(LAYERS) * SIZE), k, v, chosen


def drawn_trimmer(model: Any) -> TrimmerNet:
    torch.manual_seed(0)
    trimmer = TrimmerNet(TrimmerSettings(LAYERS, model.config.hidden_size, units=0))
    return trimmer.eval().requires_grad_(requires_grad=False)
