"""A KV writer and a Trimmer with drawn weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from everlong.models.fingerprint import weights_fingerprint
from everlong.models.pack import Pack
from everlong.parts.kv_writer.model import KV_WRITER, KvWriterNet, KvWriterSettings
from everlong.parts.latents import LatentSettings
from everlong.parts.trimmer.model import TRIMMER, TrimmerNet, TrimmerSettings

LAYERS = (1, 2)


def drawn_trimmer() -> TrimmerNet:
    """Make a Trimmer for a tiny model."""
    torch.manual_seed(3)
    trimmer = TrimmerNet(TrimmerSettings(LAYERS, 64, units=4))
    trimmer.scale.fill_(0.2)
    return TrimmerNet.of_part(trimmer.part({}))


def drawn_writer(model: Any, seed: int = 0, *, trained: bool = True) -> KvWriterNet:
    """Make a KV writer for `model`, with weights as if trained or as they are before training."""
    own = model.config
    reader = LatentSettings(LAYERS, own.hidden_size, width=16, heads=2, depth=1, inner=24)
    config = KvWriterSettings(reader, own.num_hidden_layers, own.num_key_value_heads, own.head_dim, rank=5)
    if not trained:
        return KvWriterNet.untrained(config, seed)
    torch.manual_seed(seed)
    writer = KvWriterNet(config)
    for parameter in writer.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return KvWriterNet.of_part(writer.part({}))


def pack_with(folder: Path, model: Any, writer: KvWriterNet | None) -> Path:
    """Save a pack with the drawn Trimmer, and with `writer` if there is one. Returns `folder`."""
    parts = {TRIMMER: drawn_trimmer().part({})}
    Pack(weights_fingerprint(model), "tiny", parts | ({} if writer is None else {KV_WRITER: writer.part({})})).save(
        folder
    )
    return folder
