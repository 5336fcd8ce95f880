"""Calls of the KV operators, with RoPE by transformers' own rotation in float64."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from transformers.models.glm.modeling_glm import apply_rotary_pos_emb as rotate_glm
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as rotate_llama

from everlong import ops

PLACEMENT_FIELDS = 6


@dataclasses.dataclass(frozen=True)
class Rope:
    """A rotation with frequencies like RoFormer's. `factor` slows the last one, as llama3 and YaRN slow theirs."""

    rotary_dim: int
    theta: float
    factor: float
    attention_scaling: float
    layout: str  # "half", "glm" or "cohere": how the pairs lie in a head, and how rotary_emb repeats cos and sin

    @property
    def interleaved(self) -> bool:
        return self.layout != "half"

    @property
    def inv_freq(self) -> torch.Tensor:
        exponents = torch.arange(0, self.rotary_dim, 2, dtype=torch.float64) / self.rotary_dim
        slow = torch.linspace(1.0, 1.0 / self.factor, self.rotary_dim // 2, dtype=torch.float64)
        return self.theta**-exponents * slow

    def cos_sin(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cos, sin [1, T, R] float64, repeated as the model's rotary_emb repeats them."""
        angles = positions.double()[:, None] * self.inv_freq
        full = angles.repeat_interleave(2, dim=-1) if self.layout == "cohere" else torch.cat((angles, angles), dim=-1)
        return full.cos()[None] * self.attention_scaling, full.sin()[None] * self.attention_scaling

    def rotated(self, k: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return transformers' rotation of k [B, Hkv, T, D] in float64."""
        cos, sin = self.cos_sin(positions)
        rotary, rest = torch.split(k.double(), [self.rotary_dim, k.shape[-1] - self.rotary_dim], dim=-1)
        if self.layout == "cohere":  # its function rounds to float32 inside
            pairs = torch.stack((-rotary[..., 1::2], rotary[..., ::2]), dim=-1).flatten(-2)
            turned = rotary * cos[:, None] + pairs * sin[:, None]
        else:
            apply = rotate_glm if self.layout == "glm" else rotate_llama
            turned = apply(rotary, rotary, cos, sin)[1]
        return torch.cat((turned, rest), dim=-1)


def keys(seed: int, batch: int, heads: int, tokens: int, dim: int) -> torch.Tensor:
    """Return random keys [B, Hkv, T, D] in float64."""
    return torch.randn(batch, heads, tokens, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@dataclasses.dataclass
class Frame:
    """Buffers [L, Hkv, F, D] whose slot t has the key of position first + t. `plain` has un-rotated keys in float64."""

    k: torch.Tensor
    v: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    plain: torch.Tensor

    @property
    def buffers(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.k, self.v, self.cos, self.sin

    def clone(self) -> Frame:
        return Frame(*(t.clone() for t in (*self.buffers, self.plain)))


def phase(rope: Rope, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cos and sin [T, R / 2] fp32 at `positions` [T], as a frame keeps them."""
    angles = positions.double()[:, None] * rope.inv_freq
    return (angles.cos() * rope.attention_scaling).float(), (angles.sin() * rope.attention_scaling).float()


def make_frame(rope: Rope, seed: int, *, slots: int, dim: int, first: int = 0, dtype: torch.dtype) -> Frame:
    """Make a frame of 3 layers and 2 KV heads, at positions from `first`."""
    plain = keys(seed, 3, 2, slots, dim)
    at = torch.arange(slots) + first
    values = keys(seed + 1, 3, 2, slots, dim)
    return Frame(rope.rotated(plain, at).to(dtype), values.to(dtype), *phase(rope, at), plain)


def placements_of_block(tokens: int, page_tokens: int, codec: str, dim: int, slot: int, position: int) -> torch.Tensor:
    """Return the placements of a whole block of a frame that `make_frame` made, for `restore_kv`."""
    rows, offset = [], 0
    for first in range(0, tokens, page_tokens):
        held = min(page_tokens, tokens - first)
        rows.append([offset, held, 0, held, slot + first, position + first])
        offset += ops.payload_bytes(held, page_tokens, 3, 2, dim, codec)
    return torch.tensor(rows, dtype=torch.int64).reshape(-1, PLACEMENT_FIELDS)


def operator_calls() -> dict[str, tuple[Any, ...]]:
    """Return a call of every operator by a name: the operator, its arguments, and maybe its keywords."""
    rope = Rope(8, 1e4, 1.0, 1.25, "half")
    frame = make_frame(rope, 0, slots=40, dim=10, dtype=torch.float32)
    at = torch.arange(40)
    payload = ops.archive_kv(*frame.buffers, 0, 20, 16, "e4m3")
    places = placements_of_block(20, 16, "e4m3", 10, slot=4, position=9)
    kv = torch.ops.everlong
    return {
        "derotate_kv": (kv.derotate_kv.default, (frame.k, frame.v, *rope.cos_sin(at))),
        "derotate_kv, strided": (
            kv.derotate_kv.default,
            (frame.k[:, :, ::2], frame.v[:, :, ::2], *rope.cos_sin(at[:20])),
        ),
        "rerotate_kv": (kv.rerotate_kv.default, (frame.k, frame.v, at, rope.inv_freq, 1.25)),
        "rerotate_kv, fp32": (kv.rerotate_kv.default, (frame.k, frame.v, at, rope.inv_freq.float(), 1.25)),
        "rerotate_kv, no table": (kv.rerotate_kv.default, (frame.k, frame.v, at)),
        "shift_kv_, fp32": (kv.shift_kv_.default, (*frame.clone().buffers, 3, 1, 20, -2, rope.inv_freq.float())),
        "restore_kv, fp32": (
            kv.restore_kv.default,
            (payload, places, *frame.clone().buffers, 16, "e4m3", rope.inv_freq.float(), 1.25),
        ),
        "shift_kv_": (kv.shift_kv_.default, (*frame.clone().buffers, 3, 1, 20, -2, rope.inv_freq)),
        "gather_kv_": (
            kv.gather_kv_.default,
            (*frame.buffers, at[3:9], *frame.clone().buffers, at[20:26], at[:6], rope.inv_freq, 1.25),
        ),
        "archive_kv": (kv.archive_kv.default, (*frame.buffers, 3, 21, 16, "bf16")),
        "archive_kv, e4m3": (kv.archive_kv.default, (*frame.buffers, 3, 21, 16, "e4m3")),
        "archive_kv, e5m2": (kv.archive_kv.default, (*frame.buffers, 3, 21, 16, "e5m2")),
        "archive_kv, out": (
            kv.archive_kv.out,
            (*frame.buffers, 3, 21, 16, "e4m3"),
            {"out": torch.zeros(ops.payload_bytes(21, 16, 3, 2, 10, "e4m3"), dtype=torch.uint8)},
        ),
        "encode_kv": (kv.encode_kv.default, (frame.k, frame.v, 16, "e4m3")),
        "encode_kv, no tokens": (kv.encode_kv.default, (frame.k[:, :, :0], frame.v[:, :, :0], 16, "bf16")),
        "decode_kv": (kv.decode_kv.default, (payload, 3, 2, 20, 10, 16, "e4m3", torch.float16)),
        "restore_kv": (
            kv.restore_kv.default,
            (payload, places, *frame.clone().buffers, 16, "e4m3", rope.inv_freq, 1.25),
        ),
    }
