"""<RETRIEVE>, learned: text is recalled for a question only if the model asks for it at the question's end."""

from __future__ import annotations

import dataclasses

from everlong.frame.part import LoadContext, PartSettings
from everlong.parts.retrieve.model import RETRIEVE
from everlong.parts.retrieve.runtime import LearnedGate, RetrieveRuntime


@dataclasses.dataclass(frozen=True)
class Retrieve(PartSettings, group="retrieve"):
    """For the policy "prompt". Where the model does not ask, the newest text stays as it is."""

    entries = (RETRIEVE,)

    def load(self, opening: LoadContext) -> LearnedGate:
        assert opening.pack is not None
        return LearnedGate(RetrieveRuntime.of_part(opening.pack.parts[RETRIEVE], opening.model))
