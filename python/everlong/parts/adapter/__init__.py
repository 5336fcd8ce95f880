"""The adapter: low-rank maps beside a model's own weights, which help it to answer from recalled text."""

from __future__ import annotations

import dataclasses

from everlong.frame.part import LoadContext, PartSettings
from everlong.parts.adapter.runtime import AdapterRuntime


@dataclasses.dataclass(frozen=True)
class Adapter(PartSettings, group="adapter"):
    """The adapter works where the model's pack has one. Nothing that is archived depends on it."""

    entries = ("adapter",)
    optional = True

    def load(self, opening: LoadContext) -> AdapterRuntime:
        assert opening.pack is not None
        return AdapterRuntime(opening.pack.parts[self.name], opening.model)
