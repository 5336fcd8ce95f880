"""How a model rotates its keys, read from its config: RoPE as one value.

Frequencies and attention scaling are transformers' own (`modeling_rope_utils`), for every kind that it has. Two kinds
change their table with the length of the text. A frame has one table, chosen by the most tokens that it can hold:

- dynamic: within the trained window it is RoFormer's own table, and `attach` refuses a frame beyond that window;
- longrope: the short factors up to `original_max_position_embeddings`, the long ones for a larger frame. Its positions
  then begin at `first_position`, so that the model uses the long ones, too, from the first token on.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import struct
from typing import Any

import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import everlong.ops as ops
from everlong.errors import UnsupportedModelError

# Model types that rotate pairs (2i, 2i + 1). All others split a head in halves, (i, i + R/2).
INTERLEAVED_MODEL_TYPES = frozenset(
    {"blt", "cohere", "cohere2", "cohere2_moe", "ernie4_5", "ernie4_5_moe", "glm", "glm4", "helium", "moonshine"}
)
# Model types that rotate keys in yet another way: backwards, as complex numbers, permuted first, or as latents.
OTHER_ROTATION_MODEL_TYPES = frozenset(
    {
        "axk1",
        "axk2",
        "bailing_hybrid",
        "codegen",
        "deepseek_v2",
        "deepseek_v3",
        "deepseek_v32",
        "deepseek_v4",
        "dots3_note",
        "glm4_moe_lite",
        "glm_moe_dsa",
        "gptj",
        "llama4",
        "llama4_text",
        "longcat_flash",
        "mistral4",
        "nanochat",
        "youtu",
    }
)
KINDS = ("default", *ROPE_INIT_FUNCTIONS)


@dataclasses.dataclass(frozen=True, eq=False)
class RopeTable:
    """A key in the frame is attention_scaling * R(position) k; inv_freq float64 [rotary_dim / 2], radians per token."""

    inv_freq: torch.Tensor
    attention_scaling: float
    interleaved: bool

    @property
    def rotary_dim(self) -> int:
        """Elements of a head that are rotated."""
        return 2 * self.inv_freq.numel()

    def fingerprint(self) -> str:
        """Return the sha256 of all values: equal exactly when two tables rotate the same way."""
        digest = hashlib.sha256()
        digest.update(struct.pack("<d?q", self.attention_scaling, self.interleaved, self.rotary_dim))
        digest.update(struct.pack(f"<{self.inv_freq.numel()}d", *self.inv_freq.tolist()))
        return digest.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RopeTable) and self.fingerprint() == other.fingerprint()

    def __hash__(self) -> int:
        return hash(self.fingerprint())


# For a layer without positions (NoPE): its keys are the same wherever they stand.
NO_ROPE = RopeTable(torch.zeros(0, dtype=torch.float64, device="cpu"), 1.0, False)


def rope_table(config: Any, layer_type: str | None = None, frame_tokens: int | None = None) -> RopeTable:
    """Return the table of a transformers config, for layers of `layer_type` and a frame of `frame_tokens`.

    `frame_tokens` None is a short frame. Raises UnsupportedModelError, which names what everlong does not serve.
    """
    name = getattr(config, "model_type", type(config).__name__)
    if name in OTHER_ROTATION_MODEL_TYPES:
        raise UnsupportedModelError(f"{name}: it rotates its keys in a way of its own; half-split and interleaved work")
    parameters = _parameters(config, layer_type)
    if parameters is None:
        return NO_ROPE
    kind = parameters.get("rope_type", "default")
    if kind not in KINDS:
        raise UnsupportedModelError(f"{name}: RoPE of the kind {kind!r}; {', '.join(KINDS)} work")
    # RoFormer's own table has no function of its own: it is linear scaling by 1, which divides by exactly 1.
    if kind == "default":
        kind, parameters = "linear", {**parameters, "rope_type": "linear", "factor": 1.0}
    # The init functions normalise the config that they are given, so they get a copy.
    own = copy.copy(config)
    arguments: dict[str, Any] = {}
    if has_layer_tables(config):
        arguments["layer_type"] = layer_type
        own.rope_parameters = {**config.rope_parameters, layer_type: dict(parameters)}
    else:
        own.rope_parameters = dict(parameters)
    if kind == "longrope":
        arguments["seq_len"] = frame_tokens
    with torch.device("cpu"):  # whatever torch's default is
        inv_freq, attention_scaling = ROPE_INIT_FUNCTIONS[kind](own, **arguments)
    return RopeTable(inv_freq.double().contiguous(), float(attention_scaling), name in INTERLEAVED_MODEL_TYPES)


def has_layer_tables(config: Any) -> bool:
    """Return whether `rope_parameters` hold a table for each type of layers (gemma3), and not one for all."""
    values = (getattr(config, "rope_parameters", None) or {}).values()
    return any(value is None or isinstance(value, dict) for value in values)


def first_position(config: Any, frame_tokens: int) -> int:
    """Return the position that the model is told for the frame's first: 0, or where its long factors begin."""
    return max((original for original in short_lengths(config) if frame_tokens > original), default=0)


def table_tokens(config: Any, frame_tokens: int) -> int:
    """Return the largest frame with the same table as one of `frame_tokens`."""
    longer = [original for original in short_lengths(config) if frame_tokens <= original]
    return min([int(config.max_position_embeddings), *longer])


def short_lengths(config: Any) -> set[int]:
    """Return the lengths up to which the model's longrope tables use their short factors."""
    parameters = getattr(config, "rope_parameters", None) or {}
    tables = parameters.values() if has_layer_tables(config) else (parameters,)
    return {
        int(table["original_max_position_embeddings"])
        for table in tables
        if table is not None and table.get("rope_type") == "longrope"
    }


def turn_keys(keys: torch.Tensor, table: RopeTable, delta: int) -> torch.Tensor:
    """Return a copy of rotated keys [B, Hkv, T, D], turned by `delta` positions; the scaling m stays in them."""
    turned = keys.clone(memory_format=torch.contiguous_format)
    tokens = keys.shape[-2]
    if table.rotary_dim == 0 or delta == 0 or tokens == 0:
        return turned
    # The op also keeps the phase of slots that are archived later, and moves values along. These keys have neither.
    cos = torch.ones(tokens, table.rotary_dim // 2, dtype=torch.float32, device=keys.device)
    ops.shift_kv_(
        turned,
        torch.empty_like(turned),
        cos,
        torch.zeros_like(cos),
        0,
        0,
        tokens,
        delta,
        table.inv_freq,
        table.interleaved,
    )
    return turned


def rotated(keys: torch.Tensor, positions: torch.Tensor, table: RopeTable) -> torch.Tensor:
    """Rotate keys [..., T, D] to positions [T]: m R(p) k. Differentiable, unlike the operators; fp32."""
    return _turned(keys, positions, table) * table.attention_scaling


def unrotated(keys: torch.Tensor, positions: torch.Tensor, table: RopeTable) -> torch.Tensor:
    """Undo `rotated` on keys [..., T, D]: R(-p) K / m. Differentiable; fp32."""
    return _turned(keys, -positions, table) / table.attention_scaling


def _turned(keys: torch.Tensor, positions: torch.Tensor, table: RopeTable) -> torch.Tensor:
    angles = positions.double()[:, None] * table.inv_freq.to(positions.device)
    cos, sin = angles.cos().float(), angles.sin().float()
    width = table.rotary_dim
    pairs, rest = keys[..., :width].float(), keys[..., width:].float()
    if table.interleaved:
        first, second = pairs[..., 0::2], pairs[..., 1::2]
    else:
        first, second = pairs[..., : width // 2], pairs[..., width // 2 :]
    turned = (first * cos - second * sin, second * cos + first * sin)
    both = torch.stack(turned, dim=-1).flatten(-2) if table.interleaved else torch.cat(turned, dim=-1)
    return torch.cat([both, rest], dim=-1)


def _parameters(config: Any, layer_type: str | None) -> dict[str, Any] | None:
    """Return the rope_parameters of one type of layers; None where they have no positions."""
    name = getattr(config, "model_type", type(config).__name__)
    parameters = getattr(config, "rope_parameters", None)
    if not isinstance(parameters, dict) or not parameters:
        raise UnsupportedModelError(f"{name}: its config has no rope_parameters; RoPE of {', '.join(KINDS)} works")
    if not has_layer_tables(config):
        return parameters
    if layer_type not in parameters:
        raise UnsupportedModelError(
            f"{name}: no RoPE for layers of the type {layer_type!r}; its rope_parameters name {sorted(parameters)}"
        )
    own: dict[str, Any] | None = parameters[layer_type]
    return own
