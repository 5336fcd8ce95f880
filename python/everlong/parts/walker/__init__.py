"""The Walker: it goes on from what a search found to what that names."""

from __future__ import annotations

import dataclasses

from everlong.frame.part import LoadContext, PartSettings
from everlong.models.pack import Pack
from everlong.parts.walker.model import shipped_walker, walker_of
from everlong.parts.walker.runtime import WalkerRuntime


@dataclasses.dataclass(frozen=True)
class Walker(PartSettings, group="walker", least={"ahead_every": 0}):
    """The Walker of the model's pack, or else the one that serves any model."""

    # Whether a walk goes on from what a search found. What it loads comes back first, within the same `search.groups`.
    # It goes through topics too, where the memory has a graph (`archive.graph`).
    searches: bool = True
    # Number of generated tokens between walks ahead; one also starts with each question. It walks by the words of both
    # and reads what it reaches from disk into RAM, where a later recall finds it. 0: off.
    ahead_every: int = 0

    @classmethod
    def between_questions(cls) -> frozenset[str]:
        return frozenset({"searches"})

    def without_keys(self) -> Walker:
        if self.ahead_every > 0:
            raise ValueError("walker.ahead_every reads keys and values ahead, and a memory of text alone has none")
        return self

    def missing(self, pack: Pack | None) -> str | None:
        if (None if pack is None else walker_of(pack)) or shipped_walker():
            return None
        return "walker: there is no Walker; `everlong train walker` makes one"

    def load(self, opening: LoadContext) -> WalkerRuntime:
        walker = (None if opening.pack is None else walker_of(opening.pack)) or shipped_walker()
        assert walker is not None
        return WalkerRuntime(walker, opening, self)
