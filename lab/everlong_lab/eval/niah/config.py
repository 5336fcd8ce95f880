"""What is planted and asked."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from everlong.config.settings import require_choice
from everlong_lab.corpora.facts import DEFAULT_KINDS, Kind
from everlong_lab.corpora.haystack import GOLD_TOKENS


@dataclasses.dataclass(frozen=True)
class NiahConfig:
    tokens: int = 32_768  # tokens of the longest haystack
    # Where reading stops to ask, ascending to `tokens`; a quarter, half and all of it when empty.
    lengths: tuple[int, ...] = ()
    depths: int = 10
    facts_per_kind: int = 10
    kinds: tuple[Kind, ...] = DEFAULT_KINDS
    # Whether every length has its own facts, spread over all of it. Otherwise only the longest has, and a shorter one
    # is asked for those nearest to the middle of each depth that has any.
    facts_at_every_length: bool = True
    window_at_every_length: bool = True  # whether the window alone is asked at every length, or at the longest only
    gold_tokens: int = GOLD_TOKENS
    seed: int = 0
    # Variables of the tokenizer's chat template, in all three ways of asking.
    chat_template_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.depths < 1 or self.facts_per_kind < 1 or self.tokens < 1 or not self.kinds:
            raise ValueError("tokens, depths, facts_per_kind and kinds must not be empty")
        for kind in self.kinds:
            require_choice("kinds", kind, Kind)
        if self.lengths and (list(self.lengths) != sorted(set(self.lengths)) or self.lengths[-1] != self.tokens):
            raise ValueError(f"lengths {self.lengths} must ascend to tokens={self.tokens}")

    def checkpoints(self) -> tuple[int, ...]:
        return self.lengths or tuple(sorted({max(1, self.tokens // share) for share in (4, 2, 1)}))
