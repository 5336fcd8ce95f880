"""Vectors for late interaction, as a memory keeps them with its blocks."""

from __future__ import annotations

import torch


def as_int8(vectors: torch.Tensor) -> torch.Tensor:
    """Return vectors [n, dimension] as int8, each scaled by its own largest number. Only directions count."""
    largest = vectors.abs().amax(dim=-1, keepdim=True).clamp(min=1e-12)
    return torch.round(vectors / largest * 127).to(torch.int8)
