"""The parts of one frame at work, composed: each of their hooks is called here, and none of them by name."""

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
    """In the order in which they were given; where only one can be obeyed, the last one is."""

    def __init__(self, at_work: Mapping[str, Any] | None = None) -> None:
        """`at_work`: objects with hooks (frame/part.py), by the part's name."""
        self._at_work = dict(at_work or {})
        self._kept: dict[str, bytes] = {}  # of each part, what the memory has

    @classmethod
    def loaded(cls, parts: Sequence[Any], opening: Opening) -> Parts:
        """Of settings; a part without settings of its own is the object with hooks itself."""
        at_work: dict[str, Any] = {}
        for one in parts:  # a loop: what warns names the caller's line by counting calls
            loaded = one.load(opening) if hasattr(one, "load") else one
            if loaded is not None:
                at_work[name_of(one)] = loaded
        return cls(at_work)

    def having(self, hook: str) -> list[Any]:
        """Those that have it."""
        return [one for one in self._at_work.values() if hasattr(one, hook)]

    def last(self, hook: str) -> Any:
        """The one that is obeyed; None where none has it."""
        return next(reversed(self.having(hook)), None)

    def _leaving(self, what: str) -> Any:
        own = [one for one in self.having("leaving") if what in needs_of(one).leaving]
        return next(reversed(own), None)

    @property
    def keeper(self) -> Any:
        """Who writes the keys and values of tokens that are kept; None: they are the tokens' own."""
        return self._leaving("kept")

    @property
    def mourner(self) -> Any:
        """Who makes the slot of a span that leaves; None: it is the mean of its tokens."""
        return self._leaving("tombstone")

    @property
    def details(self) -> DetailTokens | None:
        """How blocks come back as Detail Tokens."""
        one = self.last("details")
        return None if one is None else one.details

    # --- a text is read

    def configure(self, os_config: _core.MemoryOsConfig) -> _core.MemoryOsConfig:
        """What parts have to say to the Memory OS."""
        if (ends := self.last("chunk")) is not None:
            os_config.topic_threshold, os_config.topic_lookahead = ends.threshold, ends.lookahead
        if (wakes := self.last("token")) is not None:
            os_config.recall_tombstone, os_config.tombstone_threshold = True, wakes.threshold
        return os_config

    def layers_until_archived(self) -> set[int]:
        """Whose states are kept of tokens that are in no block yet."""
        of_blocks = [*self.having("block"), *self.having("worth"), *([] if self.keeper is None else [self.keeper])]
        return {layer for one in of_blocks for layer in needs_of(one).hidden_layers}

    def layers_until_they_leave(self) -> set[int]:
        """Whose states are kept of all that is in the frame, whether it is archived or not."""
        return set() if self.mourner is None else set(needs_of(self.mourner).hidden_layers)

    def layers_of_what_is_heard(self) -> set[int]:
        """Whose states are read of a chunk, or of a token that was generated, and not kept."""
        heard = [self.last("chunk"), self.last("token")]
        return {layer for one in heard for layer in needs_of(one).hidden_layers}

    def tensors(self, span: tuple[int, int], ids: torch.Tensor, hidden: Hidden) -> dict[str, npt.NDArray[Any]]:
        """What is stored with a block; of a part that lacks states of it, as of one that was read without, nothing."""
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
        """`said` makes what they are told, where there is someone to tell."""
        for one in self.having("ahead"):
            one.ahead(said())

    def came_back(self, pages: Sequence[_core.PageRef]) -> None:
        for one in self.having("came_back"):
            one.came_back(pages)

    @contextlib.contextmanager
    def answering(self, frame: Any) -> Iterator[None]:
        """Inside, what was trained to read what came back is attached to the model."""
        one = self.last("answering")
        with contextlib.nullcontext() if one is None else one.answering(frame):
            yield

    # --- their life

    def keep_state(self, core: _core.Memory) -> None:
        """Into the memory's own files, where it is not what they have."""
        for name, one in self._at_work.items():
            state = one.state() if hasattr(one, "state") else None
            if state is not None and self._kept.get(name) != state:
                core.put_file(_file(name), zlib.crc32(state).to_bytes(4, "little") + state)
                self._kept[name] = state

    def load_state(self, core: _core.Memory) -> None:
        """Out of them; a file that is not whole is as none."""
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
        """A trace of the Memory OS with what parts did, each behind what was decided up to there."""
        own = sorted((event for one in self.having("events") for event in one.events()), key=_place)
        merged: list[dict[str, Any]] = []
        for event in events:
            while own and _place(own[0]) < _place(event):
                merged.append(own.pop(0))
            merged.append(event)
        return merged + own

    def change_settings(self, parts: Sequence[Any]) -> None:
        """The settings of parts that may change from one question to the next are these from now on."""
        for one in parts:
            at_work = self._at_work.get(name_of(one))
            if at_work is not None and hasattr(at_work, "settings"):
                at_work.settings = one

    def get(self, name: str) -> Any:
        """A part at work by its name, for who looks at it; None where there is none. The core asks for none."""
        return self._at_work.get(name)

    def settle(self) -> None:
        for one in self.having("settle"):
            one.settle()

    def close(self) -> None:
        for one in self.having("close"):
            one.close()


def parts_there(parts: Sequence[Any], pack: Pack | None) -> list[Any]:
    """Those that a pack has something for; ValueError, which says what to train, for one that cannot do without."""
    found = []
    for one in parts:
        missing = one.missing(pack) if hasattr(one, "missing") else None
        if missing is None:
            found.append(one)
        elif not getattr(one, "optional", False):
            raise ValueError(missing)
    return found


def needs_of(one: Any) -> Needs:
    """Of a part at work."""
    needs: Needs = getattr(one, "needs", _NOTHING)
    return needs


def best_first(offers: Sequence[Offer]) -> list[Offer]:
    return sorted(offers, key=lambda offer: -offer.score)


def _place(event: Mapping[str, Any]) -> int:
    """Where the stream stood; of what was not remembered, where that began."""
    branched = event.get("branched_at")
    return int(event["stream_position"] if branched is None else branched)


def _file(name: str) -> str:
    """What of a name the name of a file cannot have stands there by its number."""
    return f"part.{''.join(one if one in _OF_FILES else f'.{ord(one):x}.' for one in name)}.bin"
