"""A head on the served model's own states that says of each token of a block how much it is worth to keep.

The four-MI100 design, 3.2.2: l_t = w . act(W LayerNorm(h_t (+) h_sum) + b) + c, h_sum the mean of the block, beside a
linear map of h_t (KVzap, arXiv 2601.07891), which alone is what a closed form gives. The older a block, the less its
tokens are worth beside those of other blocks.
"""

from __future__ import annotations

import dataclasses
import math

import torch

from everlong.models.pack import Pack, PackedModule

TRIMMER = "trimmer"

_MOST = 8.0  # of a centred and scaled number: a text's very first token has states of another size


@dataclasses.dataclass(frozen=True)
class TrimmerSettings:
    layers: tuple[int, ...]  # whose states are read, as `HiddenTap` counts them
    hidden_size: int
    units: int = 64  # of the hidden layer; 0: none, the linear map alone
    age_weight: float = 1.0  # of log(1 + tokens behind a block / age_tokens), which its tokens are worth less
    age_tokens: int = 512


class TrimmerNet(PackedModule):
    """Of states [T, layers * hidden size], the layers' side by side, of a block's tokens in order."""

    settings: TrimmerSettings

    center: torch.Tensor
    scale: torch.Tensor

    def __init__(self, settings: TrimmerSettings) -> None:
        if settings.units < 0:
            raise ValueError(f"units are {settings.units}, expected 0 or more")
        super().__init__()
        self.settings = settings
        width = len(settings.layers) * settings.hidden_size
        self.register_buffer("center", torch.zeros(width))
        self.register_buffer("scale", torch.ones(width))
        self.linear = torch.nn.Linear(width, 1)
        self.inner = torch.nn.Linear(2 * width, settings.units) if settings.units else None
        self.outer = torch.nn.Linear(settings.units, 1) if settings.units else None

    def normal(self, states: torch.Tensor) -> torch.Tensor:
        """States [T, width] fp32, each number centred and scaled as in training."""
        return ((states.float() - self.center) * self.scale).clamp(-_MOST, _MOST)

    def logits(self, normal: torch.Tensor) -> torch.Tensor:
        """[T] of `normal` states [T, width] of one block: each token's worth by itself."""
        logits: torch.Tensor = self.linear(normal)[:, 0]
        if self.inner is not None and self.outer is not None:
            block = normal.mean(dim=0, keepdim=True).expand_as(normal)
            both = torch.nn.functional.layer_norm(torch.cat([normal, block], dim=-1), (2 * normal.shape[-1],))
            logits = logits + self.outer(torch.nn.functional.gelu(self.inner(both)))[:, 0]
        return logits

    def scores(self, states: torch.Tensor, behind: int = 0) -> torch.Tensor:
        """[T] fp32 of states [T, width] of a block, behind which so many tokens of the stream stand: those that score
        highest are to be kept, whatever the number. Scores of several blocks of a stream may be compared.
        """
        if len(states) == 0:
            return states.new_zeros(0, dtype=torch.float32)
        age = math.log1p(behind / self.settings.age_tokens)
        return self.logits(self.normal(states)) - self.settings.age_weight * age


def trimmer_of(pack: Pack) -> TrimmerNet | None:
    """The Trimmer of a pack, None where it has none."""
    return TrimmerNet.of_part(pack.parts[TRIMMER]) if TRIMMER in pack.parts else None


def keep(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Int64 [count] ascending: the tokens that score highest [T], the earlier of equal ones; all of them where there
    are no more.
    """
    order = torch.argsort(scores, descending=True, stable=True)
    return order[: max(0, count)].sort().values
