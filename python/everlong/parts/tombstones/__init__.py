"""Tombstones that wake: attention to one while an answer is generated says that its span is needed."""

from __future__ import annotations

import dataclasses
import warnings
from typing import TYPE_CHECKING, Literal

from everlong.frame.part import LoadContext, PartSettings
from everlong.models.pack import Pack
from everlong.parts.tombstones.model import TOMBSTONES, TombstoneHeads
from everlong.parts.tombstones.runtime import TombstoneRuntime

if TYPE_CHECKING:
    from everlong.config import MemoryConfig


@dataclasses.dataclass(frozen=True)
class Tombstones(PartSettings, group="tombstones"):
    """For `frame.tombstones`. Where a generated token attends to a tombstone enough, something is recalled."""

    entries = ("tombstones",)

    threshold: float | None = None  # least score at which a tombstone wakes; None: the one of the model's pack
    # What comes back then. "span": the tombstone's span. "search": what the newest tokens' queries find. A tombstone
    # may tell well that something is needed, and less well which span.
    recall: Literal["span", "search"] = "span"

    @classmethod
    def between_questions(cls) -> frozenset[str]:
        return frozenset({"recall"})

    def check(self, config: MemoryConfig) -> None:
        if config.frame.tombstones == 0:
            raise ValueError("frame.tombstones, which the part tombstones heeds, is 0: expected at least 1")

    def missing(self, pack: Pack | None) -> str | None:
        if super().missing(pack) is None:
            return None
        return (
            "tombstones: there is no calibration of tombstones for this model; `everlong eval tombstones --keep` makes "
            "one"
        )

    def load(self, opening: LoadContext) -> TombstoneRuntime:
        assert opening.pack is not None
        part = opening.pack.parts[TOMBSTONES]
        by_writer = bool(part.made.get("made", {}).get("writer", False))
        makers = [one for one in opening.config.parts if hasattr(one, "makes_tombstones")]
        if by_writer != any(one.makes_tombstones(opening.pack) for one in makers):
            kind = "by the KV writer" if by_writer else "that are means"
            warnings.warn(f"the calibration is for tombstones {kind}, and this memory makes others", stacklevel=5)
        return TombstoneRuntime(TombstoneHeads.of_part(part), self)
