"""Hard top-K that a gradient goes through (the four-MI100 design, 3.2.2.2)."""

from __future__ import annotations

import torch


def gumbel(shape: torch.Size | tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Fp32 noise whose largest sum with logits is a draw from their softmax."""
    uniform = torch.rand(shape, generator=generator).clamp(min=1e-9, max=1 - 1e-7)
    return -torch.log(-torch.log(uniform))


def relaxed_top_k(logits: torch.Tensor, count: int, temperature: float) -> torch.Tensor:
    """[..., T] in (0, 1): sigmoid of how far a logit [..., T] is above or below the middle between the last that is
    kept and the first that is not. The middle is no variable: K is given, so that one token's gain is not all others'
    loss.
    """
    tokens = logits.shape[-1]
    ordered = logits.detach().sort(dim=-1, descending=True).values
    middle = (ordered[..., count - 1 : count] + ordered[..., min(count, tokens - 1) :][..., :1]) / 2
    return torch.sigmoid((logits - middle) / temperature)


def straight_through_top_k(logits: torch.Tensor, count: int, temperature: float) -> torch.Tensor:
    """[..., T] of 0 and 1, `count` ones a row, at the largest logits [..., T]; its derivative is the relaxed one's.

    ValueError for a count that leaves none or all of T: there is nothing to learn then.
    """
    if not 0 < count < logits.shape[-1]:
        raise ValueError(f"{count} of {logits.shape[-1]} tokens are kept, expected some and not all")
    soft = relaxed_top_k(logits, count, temperature)
    hard = torch.zeros_like(soft).scatter(-1, logits.detach().topk(count, dim=-1).indices, 1.0)
    return hard + soft - soft.detach()
