"""What calibration found for a model, and where it is kept: with the memory, and in a file for the model's next memory.

Files: `$EVERLONG_CACHE/profiles`, by default `~/.cache/everlong/profiles` (`$XDG_CACHE_HOME` is heeded), one JSON file
a model, named by the fingerprint of its weights and RoPE. Nothing depends on them: what is missing or damaged is found
anew. An evaluation keeps them in a folder of its own: what it finds must not depend on what else ran on the machine.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import hashlib
import json
import os
import pathlib
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

import everlong._core as _core

if TYPE_CHECKING:
    from everlong.memory.fingerprint import Fingerprint

FEWEST_PAGES = 256  # a profile found among fewer serves the memory it was found on, and no other

_ATTRIBUTE = "index_profile"
_own_folder: contextvars.ContextVar[pathlib.Path | None] = contextvars.ContextVar("profiles", default=None)


@dataclasses.dataclass(frozen=True)
class IndexProfile:
    """The retrieval heads of a model, and how they were found."""

    heads: tuple[tuple[int, int, int], ...]  # (layer, query head, KV head), best first; layers among the archived ones
    query_distance: int
    reciprocal_rank: float  # mean over quotes, of the chosen heads together
    pages: int  # among which the quoted page was to be found
    quotes: int
    seed: int

    def fits(self, layers: int, query_heads: int, kv_heads: int) -> bool:
        """Whether its heads are those of a model with so many archived layers and heads."""
        return bool(self.heads) and all(
            0 <= layer < layers and 0 <= head < query_heads and head * kv_heads // query_heads == kv_head
            for layer, head, kv_head in self.heads
        )

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> IndexProfile:
        fields = json.loads(text)
        fields["heads"] = tuple(tuple(head) for head in fields["heads"])
        return cls(**fields)


def load_profile(core: _core.Memory) -> IndexProfile | None:
    """The profile kept in the memory's manifest, if there is one that can be read."""
    text = core.manifest().attributes.get(_ATTRIBUTE)
    return None if text is None else _read(text)


def keep_profile(core: _core.Memory, profile: IndexProfile) -> None:
    """Keep the profile in the manifest of a memory that can be written."""
    if not core.read_only:
        core.set_attribute(_ATTRIBUTE, profile.to_json())


def load_model_profile(prints: Fingerprint, *, heads: int, query_distance: int) -> IndexProfile | None:
    """The profile of an earlier memory of this model, where it was found for so many heads and that distance."""
    try:
        profile = _read(_file(prints).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if profile is None or len(profile.heads) != heads or profile.query_distance != query_distance:
        return None
    return profile


def _read(text: str) -> IndexProfile | None:
    try:
        return IndexProfile.from_json(text)
    except (ValueError, TypeError, KeyError):
        return None


def save_model_profile(prints: Fingerprint, profile: IndexProfile) -> None:
    """Keep a profile for the model's later memories, if it was found among enough pages.

    A folder that cannot be written is passed over: the profile costs seconds to find again.
    """
    if profile.pages < FEWEST_PAGES:
        return
    try:
        file = _file(prints)
    except OSError:
        return
    written = file.with_suffix(f".{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        written.write_text(profile.to_json() + "\n", encoding="utf-8")
        written.replace(file)
    except OSError:
        with contextlib.suppress(OSError):
            written.unlink()


@contextlib.contextmanager
def profiles_in(folder: pathlib.Path | None) -> Iterator[None]:
    """Inside, this thread's models find and keep their profiles in `folder` alone; None: in one that goes after it."""
    with contextlib.ExitStack() as undone:
        if folder is None:
            folder = pathlib.Path(undone.enter_context(tempfile.TemporaryDirectory(prefix="everlong-")))
        token = _own_folder.set(folder)
        undone.callback(_own_folder.reset, token)
        yield


def _file(prints: Fingerprint) -> pathlib.Path:
    name = hashlib.sha256(f"{prints.weights} {prints.rope}".encode()).hexdigest()[:32]
    return (_own_folder.get() or _cache_folder() / "profiles") / f"{name}.json"


def _cache_folder() -> pathlib.Path:
    named = os.environ.get("EVERLONG_CACHE")
    if named:
        return pathlib.Path(named)
    try:
        home = pathlib.Path.home()
    except RuntimeError as error:  # neither HOME nor an entry for the user, as in some containers
        raise FileNotFoundError(str(error)) from error
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "everlong"
