"""The reference: RoPE by its formula, in fp64.

A pair of a head is a complex number, which each token turns by the pair's frequency.
"""

from __future__ import annotations

import torch

from everlong.models.rope import RopeTable


def rotated(x: torch.Tensor, table: RopeTable, positions: torch.Tensor, scale: float) -> torch.Tensor:
    """Return x [..., D] with scale * R(positions) x in its rotated part and the rest as it is.

    positions broadcast to x [...].
    """
    turned = x.double().clone()
    half = table.rotary_dim // 2
    for pair, frequency in enumerate(table.inv_freq.tolist()):
        first, second = (2 * pair, 2 * pair + 1) if table.interleaved else (pair, pair + half)
        angles = (positions.double() * frequency).expand(x.shape[:-1])
        z = torch.complex(turned[..., first], turned[..., second]) * torch.polar(torch.full_like(angles, scale), angles)
        turned[..., first], turned[..., second] = z.real, z.imag
    return turned
