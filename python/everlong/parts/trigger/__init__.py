"""The trigger: blocks of what is read end where a topic does, as the model's own states say."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from everlong.frame.part import Opening, PartSettings
from everlong.parts.trigger.at_work import LearnedTopicEnds

if TYPE_CHECKING:
    from everlong.config import MemoryConfig


@dataclasses.dataclass(frozen=True)
class Trigger(PartSettings, group="trigger", least={"mean_tokens": 1}):
    """Beside the rules (turns and signals, and near L_max a paragraph or sentence)."""

    entries = ("trigger",)

    mean_tokens: int = 256  # what blocks of books come to, on average

    def check(self, config: MemoryConfig) -> None:
        archive = config.archive
        if not archive.least_tokens < self.mean_tokens < archive.block_tokens:
            raise ValueError(
                f"trigger.mean_tokens is {self.mean_tokens}, expected more than archive.least_tokens, "
                f"{archive.least_tokens}, and less than archive.block_tokens, {archive.block_tokens}"
            )

    def load(self, opening: Opening) -> LearnedTopicEnds:
        assert opening.pack is not None
        return LearnedTopicEnds(opening.pack, opening.config.os_config(), self.mean_tokens)
