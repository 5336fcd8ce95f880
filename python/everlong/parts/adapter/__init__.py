"""The adapter: low-rank maps beside a model's own, which help it to answer from what came back."""

from __future__ import annotations

import dataclasses

from everlong.frame.part import Opening, PartSettings
from everlong.parts.adapter.at_work import Attached


@dataclasses.dataclass(frozen=True)
class Adapter(PartSettings, group="adapter"):
    """At work where the model's pack has one; nothing that is archived depends on it."""

    entries = ("adapter",)
    optional = True

    def load(self, opening: Opening) -> Attached:
        assert opening.pack is not None
        return Attached(opening.pack.parts[self.name], opening.model)
