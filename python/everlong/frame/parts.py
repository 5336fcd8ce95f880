"""The parts of one frame, composed. Their hooks are called here, by what they do and never by a part's name."""

from __future__ import annotations

import contextlib
import logging
import string
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import everlong._core as _core
from everlong.config import name_of
from everlong.frame.details import DetailTokens
from everlong.frame.part import Hidden, Needs, Offer, Opening, Said
from everlong.models.pack import Pack

_LOGGER = logging.getLogger("everlong")
_NOTHING = Needs()
_OF_FILES = frozenset(string.ascii_lowercase + string.digits + "_")


class Parts:
    """The parts of one frame, in the order in which they were given. Where only one can be obeyed, the last one is."""

    def __init__(self, at_work: Mapping[str, Any] | None = None) -> None:
        """Take objects with hooks (frame/part.py), by the part's name."""
        self._at_work = dict(at_work or {})
        self._kept: dict[str, bytes] = {}  # the state of each part, as the memory has it

    @classmethod
    def loaded(cls, parts: Sequence[Any], opening: Opening) -> Parts:
        """Load parts from their settings. A part without settings of its own is the object with hooks itself."""
        at_work: dict[str, Any] = {}
        for one in parts:  # a loop, because warnings name the caller's line by counting calls
            loaded = one.load(opening) if hasattr(one, "load") else one
            if loaded is not None:
                at_work[name_of(one)] = loaded
        return cls(at_work)

    def having(self, hook: str) -> list[Any]:
        """Return the parts that have the hook."""
        return [one for one in self._at_work.values() if hasattr(one, hook)]

    def name(self, one: Any) -> str:
        """Return the name of a part at work."""
        return next(name for name, part in self._at_work.items() if part is one)

    def last(self, hook: str) -> Any:
        """Return the part whose hook is obeyed; None where no part has it."""
        return next(reversed(self.having(hook)), None)

    def _leaving(self, what: str) -> Any:
        own = [one for one in self.having("leaving") if what in needs_of(one).leaving]
        return next(reversed(own), None)

    @property
    def keeper(self) -> Any:
        """The part that writes keys and values of kept tokens; None: they stay as they were read."""
        return self._leaving("kept")

    @property
    def mourner(self) -> Any:
        """The part that makes the one slot of a span that leaves; None: the slot is the mean of its tokens."""
        return self._leaving("tombstone")

    @property
    def details(self) -> DetailTokens | None:
        """How blocks come back as Detail Tokens; None where no part writes them."""
        one = self.last("details")
        return None if one is None else one.details

    # --- a text is read

    def configure(self, os_config: _core.MemoryOsConfig) -> _core.MemoryOsConfig:
        """Set what parts decide of the Memory OS's config, and return it."""
        if (ends := self.last("chunk")) is not None:
            os_config.topic_threshold, os_config.topic_lookahead = ends.threshold, ends.lookahead
        if (wakes := self.last("token")) is not None:
            os_config.recall_tombstone, os_config.tombstone_threshold = True, wakes.threshold
        return os_config

    def layers_until_archived(self) -> set[int]:
        """Return the layers whose states are kept of tokens that are in no block yet."""
        of_blocks = [*self.having("block"), *self.having("worth"), *([] if self.keeper is None else [self.keeper])]
        return {layer for one in of_blocks for layer in needs_of(one).hidden_layers}

    def layers_until_they_leave(self) -> set[int]:
        """Return the layers whose states are kept of all tokens in the frame, archived or not."""
        return set() if self.mourner is None else set(needs_of(self.mourner).hidden_layers)

    def layers_of_what_is_heard(self) -> set[int]:
        """Return the layers whose states are read at every chunk or generated token, and not kept."""
        heard = [self.last("chunk"), self.last("token")]
        return {layer for one in heard for layer in needs_of(one).hidden_layers}

    def tensors(self, span: tuple[int, int], ids: torch.Tensor, hidden: Hidden) -> dict[str, npt.NDArray[Any]]:
        """Return the tensors to store with a block. A part that lacks states of the block stores nothing."""
        made: dict[str, npt.NDArray[Any]] = {}
        for one in self.having("block"):
            layers = needs_of(one).hidden_layers
            if all(layer in hidden for layer in layers):
                wanted = {layer: hidden[layer] for layer in layers}
                found = one.block(None, span, ids, wanted)
                made |= {name: np.ascontiguousarray(tensor) for name, tensor in found.items()}
        return made

    # --- a question is asked and answered

    def ahead(self, said: Callable[[], Said]) -> None:
        """Call the hook `ahead` of the parts that have it. `said` makes its argument, where a part wants it."""
        for one in self.having("ahead"):
            one.ahead(said())

    def came_back(self, pages: Sequence[_core.PageRef]) -> None:
        for one in self.having("came_back"):
            one.came_back(pages)

    @contextlib.contextmanager
    def answering(self, frame: Any) -> Iterator[None]:
        """Context manager: attach to the model what was trained to read what came back."""
        one = self.last("answering")
        with contextlib.nullcontext() if one is None else one.answering(frame):
            yield

    # --- their life

    def keep_state(self, core: _core.Memory) -> None:
        """Write the parts' state into the memory's own files where it changed."""
        for name, one in self._at_work.items():
            state = one.state() if hasattr(one, "state") else None
            if state is not None and self._kept.get(name) != state:
                core.put_file(_file(name), zlib.crc32(state).to_bytes(4, "little") + state)
                self._kept[name] = state

    def load_state(self, core: _core.Memory) -> None:
        """Read the parts' state from the memory's own files. A file that is damaged counts as none."""
        for name, one in self._at_work.items():
            kept = core.file(_file(name)) if hasattr(one, "load_state") else None
            if kept is None:
                continue
            if len(kept) >= 4 and zlib.crc32(kept[4:]) == int.from_bytes(kept[:4], "little"):
                one.load_state(kept[4:])
                self._kept[name] = kept[4:]
            else:
                _LOGGER.warning("what the part %s knew is damaged in the memory's folder: it begins anew", name)

    def told(self, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return a trace of the Memory OS with the parts' events in it, each after what was decided up to there."""
        own = sorted((event for one in self.having("events") for event in one.events()), key=_place)
        merged: list[dict[str, Any]] = []
        for event in events:
            while own and _place(own[0]) < _place(event):
                merged.append(own.pop(0))
            merged.append(event)
        return merged + own

    def change_settings(self, parts: Sequence[Any]) -> None:
        """Use these settings of parts from now on, for parts that may change between two questions."""
        for one in parts:
            at_work = self._at_work.get(name_of(one))
            if at_work is not None and hasattr(at_work, "settings"):
                at_work.settings = one

    def get(self, name: str) -> Any:
        """Return a part at work by its name, to look at it; None where there is none. The core asks for none."""
        return self._at_work.get(name)

    def settle(self) -> None:
        for one in self.having("settle"):
            one.settle()

    def close(self) -> None:
        for one in self.having("close"):
            one.close()


def parts_there(parts: Sequence[Any], pack: Pack | None) -> list[Any]:
    """Return the parts that a pack has something for. ValueError says what to train for one that is not optional."""
    found = []
    for one in parts:
        missing = one.missing(pack) if hasattr(one, "missing") else None
        if missing is None:
            found.append(one)
        elif not getattr(one, "optional", False):
            raise ValueError(missing)
    return found


def needs_of(one: Any) -> Needs:
    """Return the needs of a part at work."""
    needs: Needs = getattr(one, "needs", _NOTHING)
    return needs


def best_first(offers: Sequence[Offer]) -> list[Offer]:
    """Return the offers, those with the highest score first."""
    return sorted(offers, key=lambda offer: -offer.score)


def _place(event: Mapping[str, Any]) -> int:
    """Return where the stream stood; for an event that was not remembered, where its branch began."""
    branched = event.get("branched_at")
    return int(event["stream_position"] if branched is None else branched)


def _file(name: str) -> str:
    """Return a part's name as a file's name: characters that cannot stand there become numbers."""
    return f"part.{''.join(one if one in _OF_FILES else f'.{ord(one):x}.' for one in name)}.bin"
