"""Hard top-K that a gradient goes through."""

from __future__ import annotations

import torch


def gumbel(shape: torch.Size | tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Return fp32 Gumbel noise: the largest sum of noise and logits is a draw from the logits' softmax."""
    uniform = torch.rand(shape, generator=generator).clamp(min=1e-9, max=1 - 1e-7)
    return -torch.log(-torch.log(uniform))


def relaxed_top_k(logits: torch.Tensor, count: int, temperature: float) -> torch.Tensor:
    """Return [..., T] in (0, 1): the sigmoid of a logit's distance to the middle between the last kept and the first
    dropped.

    The middle has no gradient: K is given, so one token's gain must not be the loss of all others.
    """
    tokens = logits.shape[-1]
    ordered = logits.detach().sort(dim=-1, descending=True).values
    middle = (ordered[..., count - 1 : count] + ordered[..., min(count, tokens - 1) :][..., :1]) / 2
    return torch.sigmoid((logits - middle) / temperature)


def straight_through_top_k(logits: torch.Tensor, count: int, temperature: float) -> torch.Tensor:
    """Return [..., T] of 0 and 1, with `count` ones a row at the largest logits [..., T].

    Its derivative is that of the relaxed choice. Raises ValueError for a count that leaves none or all of T, as there
    is nothing to learn then.
    """
    if not 0 < count < logits.shape[-1]:
        raise ValueError(f"{count} of {logits.shape[-1]} tokens are kept, expected some and not all")
    soft = relaxed_top_k(logits, count, temperature)
    hard = torch.zeros_like(soft).scatter(-1, logits.detach().topk(count, dim=-1).indices, 1.0)
    return hard + soft - soft.detach()
