"""Scores of the tokens of a closed block: from a pack's head, or by rules that need no training."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from everlong.frame.part import Needs, Span, TokenScorer
from everlong.frame.taps import side_by_side
from everlong.models.pack import Pack
from everlong.parts.trimmer.model import TRIMMER, TrimmerNet


class HeadScorer(TokenScorer):
    """Scores by a head, from the states that a block was read with. Thread-safe."""

    def __init__(self, layers: Sequence[int], scores: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Take `scores`, which gives [T] of states [T, layers * hidden size], with the layers side by side."""
        self.needs = Needs(hidden_layers=layers)
        self._scores = scores

    @torch.no_grad()
    def score_tokens(self, span: Span) -> torch.Tensor:
        return self._scores(side_by_side(span.hidden, self.needs.hidden_layers).float().cpu())


class RandomScorer(TokenScorer):
    """Random scores, the same for the same place in a stream, whichever process reads it."""

    def score_tokens(self, span: Span) -> torch.Tensor:
        generator = torch.Generator("cpu").manual_seed(span.begin)
        return torch.rand(len(span.ids), generator=generator, device="cpu")


class KeyNormScorer(TokenScorer):
    """Scores by keys: the smallest un-rotated keys are worth most."""

    def score_tokens(self, span: Span) -> torch.Tensor:
        k, _ = span.kv()
        norms: torch.Tensor = torch.linalg.vector_norm(k, dim=-1)
        return -norms.mean(dim=(0, 1))


def trimmer_in(pack: Pack | None) -> HeadScorer:
    """Return the head of a pack that has one."""
    assert pack is not None
    trimmer = TrimmerNet.of_part(pack.parts[TRIMMER])
    return HeadScorer(trimmer.settings.layers, trimmer.scores)
