"""What calibration found for a model. It is kept with the memory, and in a file for the model's next memory.

That JSON file is among the model's profiles (`models/profiles.py`), named by the fingerprint of its weights and RoPE.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING

import everlong._core as _core
from everlong.models.profiles import store_measurement, stored_measurement

if TYPE_CHECKING:
    from everlong.memory.fingerprint import Fingerprint

FEWEST_PAGES = 256  # a profile found among fewer serves the memory it was found on, and no other
# Neither does one by which quotes are found worse: text that repeats itself tells nothing of a model's heads.
LEAST_RANK = 0.1

_ATTRIBUTE = "index_profile"


@dataclasses.dataclass(frozen=True)
class IndexProfile:
    """The retrieval heads of a model, and how they were found."""

    heads: tuple[tuple[int, int, int], ...]  # (layer, query head, KV head), best first; layers among the archived ones
    query_distance: int
    reciprocal_rank: float  # mean over quotes, of the chosen heads together
    pages: int  # pages among which the quoted one was to be found
    quotes: int
    seed: int

    def fits(self, layers: int, query_heads: int, kv_heads: int) -> bool:
        """Return whether a model with so many archived layers and heads has all of its heads."""
        return bool(self.heads) and all(
            0 <= layer < layers and 0 <= head < query_heads and head * kv_heads // query_heads == kv_head
            for layer, head, kv_head in self.heads
        )

    @property
    def serves_others(self) -> bool:
        """Whether it was found well enough for other memories of the model."""
        return self.pages >= FEWEST_PAGES and self.reciprocal_rank >= LEAST_RANK

    def to_json(self) -> str:
        """Return it as JSON text."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> IndexProfile:
        """Read what `to_json` returned."""
        fields = json.loads(text)
        fields["heads"] = tuple(tuple(head) for head in fields["heads"])
        return cls(**fields)


def load_profile(core: _core.Memory) -> IndexProfile | None:
    """Return the profile in the memory's manifest; None where there is none that can be read."""
    text = core.manifest().attributes.get(_ATTRIBUTE)
    return None if text is None else _read(text)


def store_profile(core: _core.Memory, profile: IndexProfile) -> None:
    """Keep the profile in the manifest of a writable memory."""
    if not core.read_only:
        core.set_attribute(_ATTRIBUTE, profile.to_json())


def load_model_profile(prints: Fingerprint, *, heads: int, query_distance: int) -> IndexProfile | None:
    """Return the profile of an earlier memory of this model that serves others, for as many heads and that distance."""
    text = stored_measurement(_name(prints))
    profile = None if text is None else _read(text)
    if profile is None or not profile.serves_others:
        return None
    return profile if len(profile.heads) == heads and profile.query_distance == query_distance else None


def _read(text: str) -> IndexProfile | None:
    try:
        return IndexProfile.from_json(text)
    except (ValueError, TypeError, KeyError):
        return None


def save_model_profile(prints: Fingerprint, profile: IndexProfile) -> None:
    """Keep a profile for the model's later memories, if it serves others."""
    if profile.serves_others:
        store_measurement(_name(prints), profile.to_json() + "\n")


def _name(prints: Fingerprint) -> str:
    return hashlib.sha256(f"{prints.weights} {prints.rope}".encode()).hexdigest()[:32]
