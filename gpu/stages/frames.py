"""Frames of random numbers for the stages that call operators."""

from __future__ import annotations

import dataclasses

import torch

from everlong.models.rope import RopeTable

SCALING = 1.1386294  # m of a YaRN
FIRST_POSITION = 1000  # of slot 0


@dataclasses.dataclass(frozen=True)
class Frame:
    """k, v [L, Hkv, F, D] with the rotation that each slot carries, cos and sin [F, R/2]."""

    table: RopeTable
    k: torch.Tensor
    v: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor

    def to(self, device: torch.device) -> Frame:
        """Return a copy, on the same device too; the table stays on the host."""
        return Frame(self.table, *(tensor.to(device, copy=True) for tensor in self.buffers))

    @property
    def buffers(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.k, self.v, self.cos, self.sin

    @property
    def slots(self) -> int:
        return self.k.shape[2]

    @property
    def positions(self) -> torch.Tensor:
        """The position of every slot."""
        return torch.arange(FIRST_POSITION, FIRST_POSITION + self.slots)


def rope_of(rotary_dim: int, interleaved: bool = False) -> RopeTable:
    """Return RoFormer's frequencies over the first `rotary_dim` numbers of a head."""
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float64) / max(rotary_dim, 1)
    return RopeTable(1e4**-exponents, SCALING, interleaved)


def phases_of(table: RopeTable, slots: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cos and sin [slots, R/2] of a frame, on the host."""
    angles = torch.arange(FIRST_POSITION, FIRST_POSITION + slots, dtype=torch.float64)[:, None] * table.inv_freq
    m = table.attention_scaling
    return (angles.cos() * m).float().contiguous(), (angles.sin() * m).float().contiguous()


def random_frame(
    dtype: torch.dtype,
    head_dim: int,
    table: RopeTable,
    *,
    layers: int = 2,
    heads: int = 3,
    slots: int = 300,
    seed: int = 3,
) -> Frame:
    """Return a frame on the host, with the same numbers for the same arguments."""
    generator = torch.Generator().manual_seed(seed)
    k, v = (torch.randn(layers, heads, slots, head_dim, generator=generator).to(dtype) for _ in range(2))
    return Frame(table, k, v, *phases_of(table, slots))
