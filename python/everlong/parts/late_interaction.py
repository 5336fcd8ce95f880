"""What late interaction has in common, whoever makes the vectors: how a memory keeps them, and the loss."""

from __future__ import annotations

import torch


def quantize_int8(vectors: torch.Tensor) -> torch.Tensor:
    """Return vectors [n, dimension] as int8, each scaled by its own largest number. Only directions count."""
    largest = vectors.abs().amax(dim=-1, keepdim=True).clamp(min=1e-12)
    return torch.round(vectors / largest * 127).to(torch.int8)


def info_nce(scores: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return the loss of rows that have at least one right column."""
    of_right = torch.logsumexp(scores.masked_fill(~right, -torch.inf), dim=-1)
    return (torch.logsumexp(scores, dim=-1) - of_right).mean()
