"""A head on the served model's own states that says how much each token of a block is worth to keep.

It is l_t = w . act(W LayerNorm(h_t (+) h_sum) + b) + c, where h_sum is the mean of the block, beside a linear map of
h_t (KVzap, arXiv 2601.07891). The linear map alone is what a closed form gives. The older a block, the less its tokens
are worth beside those of other blocks.
"""

from __future__ import annotations

import dataclasses
import math

import torch

from everlong.models.pack import Pack, PackedModule

TRIMMER = "trimmer"

_MOST = 8.0  # clamp for centred and scaled numbers: the states of a text's very first token have another size


@dataclasses.dataclass(frozen=True)
class TrimmerSettings:
    layers: tuple[int, ...]  # layers whose states are read, as `HiddenTap` counts them
    hidden_size: int
    units: int = 64  # width of the hidden layer; 0: the linear map alone
    # Factor on log(1 + tokens after a block / age_tokens), which is subtracted from its tokens' scores
    age_weight: float = 1.0
    age_tokens: int = 512


class TrimmerNet(PackedModule):
    """Reads states [T, layers * hidden size] of a block's tokens in order, with the layers side by side."""

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
        """Return the states [T, width] as fp32, centred and scaled as in training."""
        return ((states.float() - self.center) * self.scale).clamp(-_MOST, _MOST)

    def logits(self, normal: torch.Tensor) -> torch.Tensor:
        """Return [T] of `normal` states [T, width] of one block: each token's worth without the block's age."""
        logits: torch.Tensor = self.linear(normal)[:, 0]
        if self.inner is not None and self.outer is not None:
            block = normal.mean(dim=0, keepdim=True).expand_as(normal)
            both = torch.nn.functional.layer_norm(torch.cat([normal, block], dim=-1), (2 * normal.shape[-1],))
            logits = logits + self.outer(torch.nn.functional.gelu(self.inner(both)))[:, 0]
        return logits

    def scores(self, states: torch.Tensor, behind: int = 0) -> torch.Tensor:
        """Return [T] fp32 of states [T, width] of a block that has `behind` tokens of the stream after it.

        The tokens that score highest are to be kept, whatever their number. Scores of several blocks of a stream may be
        compared.
        """
        if len(states) == 0:
            return states.new_zeros(0, dtype=torch.float32)
        age = math.log1p(behind / self.settings.age_tokens)
        return self.logits(self.normal(states)) - self.settings.age_weight * age


def trimmer_of(pack: Pack) -> TrimmerNet | None:
    """Return the pack's Trimmer, or None where it has none."""
    return TrimmerNet.of_part(pack.parts[TRIMMER]) if TRIMMER in pack.parts else None


def tokens_to_keep(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Return int64 [count], ascending: the tokens with the highest scores [T], of equal ones the earlier.

    It returns all tokens where there are no more than `count`.
    """
    order = torch.argsort(scores, descending=True, stable=True)
    return order[: max(0, count)].sort().values
