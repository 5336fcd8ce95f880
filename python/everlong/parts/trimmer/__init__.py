"""The Trimmer: which tokens of a closed block stay in the frame when the others leave."""

from __future__ import annotations

import dataclasses
from typing import Literal

from everlong.frame.part import LoadContext, PartSettings
from everlong.models.pack import Pack
from everlong.parts.trimmer.runtime import HeadScorer, KeyNormScorer, RandomScorer, trimmer_in

Choice = Literal["learned", "random", "key_norm"]


@dataclasses.dataclass(frozen=True)
class Trimmer(PartSettings, group="trimmer"):
    """For `frame.kept_tokens`. Without the Trimmer, the newest tokens stay."""

    entries = ("trimmer",)

    # "learned": the head that was trained for the model. "random": tokens drawn anew for each block. "key_norm": the
    # tokens with the smallest un-rotated keys, which attention comes back to (Devoto et al. 2024, arXiv 2406.11430). A
    # model that normalises its keys (Qwen3, Gemma 3) makes all norms alike, so there "key_norm" hardly chooses.
    by: Choice = "learned"

    def missing(self, pack: Pack | None) -> str | None:
        missing = super().missing(pack) if self.by == "learned" else None
        return None if missing is None else f"{missing}, and 'random', 'key_norm' need none"

    def load(self, opening: LoadContext) -> HeadScorer | RandomScorer | KeyNormScorer | None:
        if opening.config.frame.kept_tokens == 0:
            return None
        if self.by == "learned":
            return trimmer_in(opening.pack)
        return RandomScorer() if self.by == "random" else KeyNormScorer()
