"""The towers: they map blocks and questions into one space, in which a memory is searched by meaning."""

from __future__ import annotations

import dataclasses

from everlong.frame.part import LoadContext, PartSettings
from everlong.models.model_interface import gpu_of
from everlong.models.pack import Pack
from everlong.part_list import is_installed
from everlong.parts.towers.runtime import TowersRuntime, search_by


@dataclasses.dataclass(frozen=True)
class Towers(PartSettings, group="towers", least={"device_bytes": 0}):
    """What `search.index` "meaning" searches by; skipped where the model's pack has none."""

    entries = ("towers",)
    optional = True

    # Memory for the vectors, in bytes, on the model's GPU, taken from when the memory is opened. 0: they are searched
    # on the host.
    device_bytes: int = 1 << 28

    def missing(self, pack: Pack | None) -> str | None:
        missing = super().missing(pack)
        if missing is None and pack is not None and pack.parts["towers"].settings.get("details_size"):
            return (
                None
                if is_installed("writer")
                else "towers: they read Detail Tokens, and the part writer is not installed"
            )
        return missing

    def load(self, opening: LoadContext) -> TowersRuntime:
        assert opening.pack is not None
        meaning = TowersRuntime(opening.pack, opening.config.archive.page_tokens, opening.model)
        search_by(meaning, opening.core, gpu_of(opening.served, self.device_bytes), self.device_bytes)
        return meaning
