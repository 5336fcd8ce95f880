"""The KV writer: it adds to the keys and values of kept tokens something of the tokens that are evicted."""

from __future__ import annotations

import dataclasses
from typing import Literal

from everlong.frame.part import LoadContext, PartSettings
from everlong.models.pack import Pack
from everlong.part_list import is_installed
from everlong.parts.kv_writer.runtime import KvWriterRuntime


@dataclasses.dataclass(frozen=True)
class KvWriter(PartSettings, group="kv_writer"):
    """The KV writer does what these settings tell it to, where the model's pack has one."""

    entries = ("kv-writer",)

    # Whether it writes the kept tokens of a block (`frame.kept_tokens`) as the block ends. What stays in the frame, and
    # what comes back with `answer.recall_mode` "kept", is then what it wrote.
    kept: bool = False
    # Whether it makes tombstones (`frame.tombstones`), each from the token that the pack's Trimmer scores best in the
    # span that left. Otherwise tombstones are the mean K and V. None: it does where the model's pack has a KV writer
    # and a Trimmer.
    tombstones: bool | None = None

    @property
    def optional(self) -> bool:  # type: ignore[override]  # unless it is asked for
        return not self.kept and not self.tombstones

    @property
    def keeps_payloads(self) -> bool:
        """Whether blocks store the keys and values of their kept tokens a second time."""
        return self.kept

    def makes_tombstones(self, pack: Pack | None) -> bool:
        """Return whether it makes tombstones with this pack."""
        return self.tombstones is not False and super().missing(pack) is None and _has_trimmer(pack)

    def missing(self, pack: Pack | None) -> str | None:
        missing = super().missing(pack)
        if missing is None and self.tombstones and not _has_trimmer(pack):
            return (
                "kv_writer.tombstones: there is no Trimmer for this model, which chooses what a tombstone is made of; "
                "`everlong train trimmer` makes one, and without, tombstones are means"
            )
        return missing

    def load(self, opening: LoadContext) -> KvWriterRuntime | None:
        assert opening.pack is not None
        frame = opening.config.frame
        evicted: set[Literal["kept", "tombstone"]] = set()
        if self.kept and frame.kept_tokens > 0:
            evicted.add("kept")
        if frame.tombstones > 0 and self.makes_tombstones(opening.pack):
            evicted.add("tombstone")
        return KvWriterRuntime(opening.pack, opening.served.device, frozenset(evicted)) if evicted else None


def _has_trimmer(pack: Pack | None) -> bool:
    """Whether the Trimmer, which chooses what a tombstone is made of, is installed and in the pack."""
    return pack is not None and "trimmer" in pack.parts and is_installed("trimmer")
