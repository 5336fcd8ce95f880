"""The trigger: blocks end where the model's own states say that a topic ends."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from everlong.frame.part import LoadContext, PartSettings
from everlong.parts.trigger.runtime import TriggerRuntime

if TYPE_CHECKING:
    from everlong.config import MemoryConfig


@dataclasses.dataclass(frozen=True)
class Trigger(PartSettings, group="trigger", least={"mean_tokens": 1}):
    """It works beside the rules: turns and signals, and paragraphs and sentences near the block's greatest length."""

    entries = ("trigger",)

    mean_tokens: int = 256  # mean length in tokens of blocks of books

    def check(self, config: MemoryConfig) -> None:
        archive = config.archive
        if not archive.least_tokens < self.mean_tokens < archive.block_tokens:
            raise ValueError(
                f"trigger.mean_tokens is {self.mean_tokens}, expected more than archive.least_tokens, "
                f"{archive.least_tokens}, and less than archive.block_tokens, {archive.block_tokens}"
            )

    def load(self, opening: LoadContext) -> TriggerRuntime:
        assert opening.pack is not None
        return TriggerRuntime(opening.pack, opening.config.os_config(), self.mean_tokens)
