"""Finds in a HuggingFace model what everlong needs, and refuses a model that it cannot serve exactly."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch

from everlong.errors import UnsupportedModelError
from everlong.rope import RopeTable, rope_table

_PHASE_TOLERANCE = 1e-3  # radians, about: HF computes its angles in fp32, which is off by 2e-4 at position 4,096


@dataclasses.dataclass(frozen=True)
class ServedModel:
    """The anatomy of a model whose every layer is full attention with rotary positions (Llama, Qwen3 ...)."""

    model: Any
    attention: tuple[torch.nn.Module, ...]  # one a layer, in order
    rotary: torch.nn.Module
    rope: RopeTable
    query_heads: int  # Hq
    kv_heads: int  # Hkv
    head_dim: int  # D
    window: int  # tokens the model was trained for
    dtype: torch.dtype
    device: torch.device

    @property
    def layers(self) -> int:
        return len(self.attention)

    def score_scale(self, layer: int) -> float:
        """What attention multiplies q.k with, over the 1/sqrt(D) that the index applies."""
        scaling: float = getattr(self.attention[layer], "scaling", self.head_dim**-0.5)
        return scaling * math.sqrt(self.head_dim)

    def query_module(self, layer: int) -> torch.nn.Module:
        """The module whose output is the layer's un-rotated q: the last one before the rotation."""
        attention = self.attention[layer]
        norm = getattr(attention, "q_norm", None)
        module = norm if norm is not None else attention.q_proj
        assert isinstance(module, torch.nn.Module)
        return module


def attach(model: Any) -> ServedModel:
    """Read a model's anatomy; raise UnsupportedModelError, with the reason, when it cannot be served exactly."""
    config = model.config.get_text_config()
    name = config.model_type
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else model.base_model
    layers = getattr(decoder, "layers", None)
    rotary = getattr(decoder, "rotary_emb", None)
    if layers is None or not isinstance(rotary, torch.nn.Module):
        raise UnsupportedModelError(
            f"{name}: no `layers` and `rotary_emb` in its decoder; models built like Llama or Qwen3 work"
        )
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        raise UnsupportedModelError(
            f"{name}: layers of the kinds {sorted(kinds)}; only models whose every layer is full_attention work"
        )
    if getattr(config, "layer_types", None) is None and getattr(config, "sliding_window", None) is not None:
        raise UnsupportedModelError(f"{name}: sliding_window={config.sliding_window}; full attention works")
    attention = []
    for index, layer in enumerate(layers):
        module = getattr(layer, "self_attn", None)
        if not isinstance(module, torch.nn.Module) or not hasattr(module, "q_proj"):
            raise UnsupportedModelError(f"{name}: layer {index} has no self_attn.q_proj; separate q, k, v work")
        attention.append(module)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    parameter = next(model.parameters())
    served = ServedModel(
        model=model,
        attention=tuple(attention),
        rotary=rotary,
        rope=rope_table(config),
        query_heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        window=config.max_position_embeddings,
        dtype=parameter.dtype,
        device=parameter.device,
    )
    _check_rotation(served, name)
    return served


@torch.no_grad()
def _check_rotation(served: ServedModel, name: str) -> None:
    """Measure that the model rotates as our table says: cos and sin at a few positions of its window."""
    positions = torch.tensor([[0, 1, 17, min(4095, served.window - 1)]], device=served.device)
    probe = torch.zeros(1, 1, served.head_dim, dtype=torch.float32, device=served.device)
    cos, sin = served.rotary(probe, positions)
    half = served.rope.rotary_dim // 2
    angles = positions[0].double().cpu()[:, None] * served.rope.inv_freq[None, :]
    for got, expected in ((cos, angles.cos()), (sin, angles.sin())):
        error = (got[0, :, :half].double().cpu() - expected * served.rope.attention_scaling).abs().max().item()
        if error > _PHASE_TOLERANCE:
            raise UnsupportedModelError(
                f"{name}: its rotary embedding differs from the one its config describes by {error:.1e}; "
                "RoPE kinds default, linear, llama3 and yarn work"
            )
