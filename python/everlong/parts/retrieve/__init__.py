"""<RETRIEVE>, learned: something comes back for a question only where the model says at its end that it wants it."""

from __future__ import annotations

import dataclasses

from everlong.frame.part import Opening, PartSettings
from everlong.parts.retrieve.at_work import Retrieving
from everlong.parts.retrieve.model import RETRIEVE


@dataclasses.dataclass(frozen=True)
class Retrieve(PartSettings, group="retrieve"):
    """Of the policy "prompt". Where it does not say so, the newest text stays as it is."""

    entries = (RETRIEVE,)

    def load(self, opening: Opening) -> Retrieving:
        assert opening.pack is not None
        return Retrieving.of_part(opening.pack.parts[RETRIEVE], opening.model)
