"""Which tokens of a closed block stay in the frame."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from everlong.frame.part import Span, TokenScorer
from everlong.frame.parts import needs_of


def token_scores(part: TokenScorer | None, span: Span) -> torch.Tensor:
    """Return the part's scores [T] of a block's tokens. Without a part or its states, the newest are best."""
    if part is None or not span.hidden.keys() >= set(needs_of(part).hidden_layers):
        return torch.arange(len(span.ids), device="cpu")
    return part.score_tokens(span)


def best_tokens(scores: torch.Tensor, begin: int, runs: Sequence[tuple[int, int]], count: int) -> list[int]:
    """Return the `count` best tokens of the stream among those of `runs`, the best first; scores [T] from `begin` on.

    A score that is not a number is the worst.
    """
    candidates = torch.cat([torch.arange(*run, device="cpu") for run in runs])
    own = scores.detach().double().cpu().nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    newest_first = candidates.flip(0)
    order = torch.argsort(own[newest_first - begin], descending=True, stable=True)
    best: list[int] = newest_first[order[:count]].tolist()
    return best
