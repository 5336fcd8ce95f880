"""A tiny encoder of random weights, with MiniLM's tokenizer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from everlong.models.pack import PackPart
from everlong.parts import encoder
from everlong.parts.encoder import runtime
from everlong.parts.encoder.model import EncoderHeads, EncoderSettings, TextEncoder, encoder_part, new_maps

SETTINGS = EncoderSettings(rank=4, dimension=16)


def tiny_bert(seed: int = 0) -> Any:
    """Return a BERT of two layers, in evaluation mode, without a pooler."""
    torch.manual_seed(seed)
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48, vocab_size=30_522
    )
    return transformers.BertModel(config, add_pooling_layer=False).eval().requires_grad_(False)


def drawn_part(seed: int = 0) -> PackPart:
    """Return an encoder of random maps and heads for `tiny_bert`."""
    torch.manual_seed(seed)
    bert = tiny_bert()
    maps, heads = new_maps(bert, SETTINGS, seed=seed), EncoderHeads(bert.config.hidden_size, SETTINGS, seed=seed)
    with torch.no_grad():
        for up in maps.up:
            up.normal_(std=0.05)
        heads.importance.weight.normal_()
        heads.sentence.normal_()
    return encoder_part(maps, heads, SETTINGS, {})


def use_tiny_encoder(patch: pytest.MonkeyPatch, seed: int = 0) -> tuple[PackPart, TextEncoder]:
    """Let memories take this encoder in place of the shipped one."""
    part = drawn_part(seed)
    made = TextEncoder.of_part(part, tiny_bert())
    patch.setattr(encoder, "trained_encoder", lambda: part)
    patch.setattr(runtime, "loaded_encoder", lambda part_id, device: made)
    return part, made
