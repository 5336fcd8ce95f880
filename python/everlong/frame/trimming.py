"""Which tokens of a closed block stay in the frame: who scores them, and the scorers that need no training."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

import torch

# In the order of how little they ask for: the newest tokens of a block; any, drawn anew for each block; those with the
# smallest un-rotated keys, which attention comes back to (Devoto et al. 2024, arXiv 2406.11430). A model that
# normalises its keys (Qwen3, Gemma 3) makes all alike: there that is hardly a choice.
UNTRAINED: tuple[Literal["newest", "random", "key_norm"], ...] = ("newest", "random", "key_norm")


@dataclasses.dataclass(frozen=True, eq=False)
class BlockTokens:
    """A block at its end, all of it in the frame still."""

    begin: int  # its first token of the stream
    ids: torch.Tensor  # int64 [T] on the CPU
    # By layer as `HiddenTap` counts them, [T, hidden size]; of the layers that the scorer named, all. Of a block that
    # began in an earlier process and was closed in this one there are none: its newest tokens are kept instead, where
    # the scorer needs any.
    hidden: Mapping[int, torch.Tensor]
    keys: Callable[[], torch.Tensor]  # makes [L, Hkv, T, D] fp32, un-rotated, of the archived layers


class TokenScorer(Protocol):
    """Says how much each token of a block is worth. Called on the path of reading: what takes long is not for it."""

    @property
    def hidden_layers(self) -> Sequence[int]:
        """Whose states it needs."""

    def score(self, block: BlockTokens) -> torch.Tensor:
        """[T] on any device, the larger the better; of tokens that score alike the newer one is kept."""


@dataclasses.dataclass(frozen=True)
class ByStates:
    """What a pack's head says of the states that a block was read with."""

    hidden_layers: Sequence[int]
    scores: Callable[[torch.Tensor], torch.Tensor]  # [T] of states [T, layers * hidden size], side by side

    def score(self, block: BlockTokens) -> torch.Tensor:
        return self.of_states(block.hidden)

    @torch.no_grad()
    def of_states(self, hidden: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """[T] of hidden states [T, hidden size] by layer."""
        return self.scores(torch.cat([hidden[layer].float().cpu() for layer in self.hidden_layers], dim=-1))


def untrained_scorer(name: str) -> TokenScorer:
    """One of UNTRAINED, by its name."""
    scorers: dict[str, TokenScorer] = {"newest": _Newest(), "random": _Random(), "key_norm": _SmallKeys()}
    return scorers[name]


def best_tokens(scores: torch.Tensor, begin: int, runs: Sequence[tuple[int, int]], count: int) -> list[int]:
    """The `count` best tokens of the stream, the best first, among those of `runs`; scores [T] from `begin` on.

    A score that is not a number is the worst.
    """
    candidates = torch.cat([torch.arange(*run, device="cpu") for run in runs])
    own = scores.detach().double().cpu().nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    newest_first = candidates.flip(0)
    order = torch.argsort(own[newest_first - begin], descending=True, stable=True)
    best: list[int] = newest_first[order[:count]].tolist()
    return best


class _Newest:
    hidden_layers: Sequence[int] = ()

    def score(self, block: BlockTokens) -> torch.Tensor:
        return torch.arange(len(block.ids), device="cpu")


class _Random:
    """The same of the same place in a stream, whichever process reads it."""

    hidden_layers: Sequence[int] = ()

    def score(self, block: BlockTokens) -> torch.Tensor:
        generator = torch.Generator("cpu").manual_seed(block.begin)
        return torch.rand(len(block.ids), generator=generator, device="cpu")


class _SmallKeys:
    hidden_layers: Sequence[int] = ()

    def score(self, block: BlockTokens) -> torch.Tensor:
        norms: torch.Tensor = torch.linalg.vector_norm(block.keys(), dim=-1)
        return -norms.mean(dim=(0, 1))
