"""The Walker: goes on from what a search found to what that names."""

from __future__ import annotations

import dataclasses

from everlong.frame.part import Opening, PartSettings
from everlong.models.pack import Pack
from everlong.parts.walker.at_work import Walking
from everlong.parts.walker.model import shipped_walker, walker_of


@dataclasses.dataclass(frozen=True)
class Walker(PartSettings, group="walker", least={"ahead_every": 0}):
    """The model's own, else the one that serves any model."""

    # A walk goes on from what a search found, and what it loads comes back first, within the same `search.groups`; it
    # goes through topics, too, where the memory has a graph (`archive.graph`).
    searches: bool = True
    # With a question, and every so many generated tokens, a walk goes on by the words of both, and what it comes to is
    # read from disk into RAM, where what the others bring back finds it. 0: off.
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

    def load(self, opening: Opening) -> Walking:
        walker = (None if opening.pack is None else walker_of(opening.pack)) or shipped_walker()
        assert walker is not None
        return Walking(walker, opening, self)
