"""The parts of one frame, composed. They are called by the protocols that they implement, and never by name."""

from __future__ import annotations

import contextlib
import inspect
import logging
import string
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

import everlong._core as _core
from everlong.config import name_of
from everlong.frame.detail_tokens import DetailTokens
from everlong.frame.part import (
    PROTOCOLS,
    AnswerProgress,
    ArchiveObserver,
    BlockBackfill,
    BlockWriter,
    Configurable,
    DetailSource,
    EvictionWriter,
    HasNeeds,
    Hidden,
    Lifecycle,
    LoadContext,
    ModelAdapter,
    Needs,
    Offer,
    PartSettings,
    RecallGate,
    RecallObserver,
    RecallPrefetcher,
    Retriever,
    Stateful,
    TokenScorer,
    TombstoneScorer,
    TopicSegmenter,
    Traced,
)
from everlong.models.pack import Pack

_LOGGER = logging.getLogger("everlong")
_NOTHING = Needs()
_Part = TypeVar("_Part")
_OF_FILES = frozenset(string.ascii_lowercase + string.digits + "_")


class Parts:
    """The parts of one frame, in the order in which they were given. Where only one can be obeyed, the last one is."""

    def __init__(self, runtime: Mapping[str, Any] | None = None) -> None:
        """Take objects that implement protocols of frame/part.py, by the part's name."""
        self._runtime = dict(runtime or {})
        self._kept: dict[str, bytes] = {}  # the state of each part, as the memory has it
        parts = list(self._runtime.values())
        self.block_writers = [one for one in parts if isinstance(one, BlockWriter)]
        self.archive_observers = [one for one in parts if isinstance(one, ArchiveObserver)]
        self.backfills = {name: one for name, one in self._runtime.items() if isinstance(one, BlockBackfill)}
        self.retrievers = [one for one in parts if isinstance(one, Retriever)]
        self.gates = [one for one in parts if isinstance(one, RecallGate)]
        self.segmenter = _last([one for one in parts if isinstance(one, TopicSegmenter)])
        self._token_scorers = [one for one in parts if isinstance(one, TokenScorer)]
        self.token_scorer = _last(self._token_scorers)
        self.tombstone_scorer = _last([one for one in parts if isinstance(one, TombstoneScorer)])
        self.adapter = _last([one for one in parts if isinstance(one, ModelAdapter)])
        writers = [one for one in parts if isinstance(one, EvictionWriter)]
        # Writes keys and values of kept tokens; None: they stay as they were read.
        self.kept_writer = _last([one for one in writers if "kept" in one.needs.evicted])
        # Makes the one slot of a span that leaves; None: the slot is the mean of its tokens.
        self.tombstone_writer = _last([one for one in writers if "tombstone" in one.needs.evicted])
        source = _last([one for one in parts if isinstance(one, DetailSource)])
        # How blocks come back as Detail Tokens; None where no part writes them.
        self.details: DetailTokens | None = None if source is None else source.details

    @classmethod
    def loaded(cls, parts: Sequence[Any], opening: LoadContext) -> Parts:
        """Load parts from their settings. A part without settings of its own is the object itself.

        TypeError for an object with a public method that is in no protocol.
        """
        runtime: dict[str, Any] = {}
        try:
            for one in parts:  # a loop, because warnings name the caller's line by counting calls
                loaded = one.load(opening) if hasattr(one, "load") else one
                if loaded is not None:
                    runtime[name_of(one)] = loaded
                    require_protocols(name_of(one), loaded)
            return cls(runtime)
        except BaseException:
            _close(runtime.values())
            raise

    # --- a text is read

    def configure(self, os_config: _core.MemoryOsConfig) -> _core.MemoryOsConfig:
        """Set what parts decide of the Memory OS's config, and return it."""
        if (ends := self.segmenter) is not None:
            os_config.topic_threshold, os_config.topic_lookahead = ends.threshold, ends.lookahead
        if (wakes := self.tombstone_scorer) is not None:
            os_config.recall_tombstone, os_config.tombstone_threshold = True, wakes.threshold
        return os_config

    def layers_until_archived(self) -> set[int]:
        """Return the layers whose states are kept of tokens that are in no block yet."""
        of_blocks = [*self.block_writers, *self._token_scorers, self.kept_writer]
        return {layer for one in of_blocks for layer in needs_of(one).hidden_layers}

    def layers_until_evicted(self) -> set[int]:
        """Return the layers whose states are kept of all tokens in the frame, archived or not."""
        return set(needs_of(self.tombstone_writer).hidden_layers)

    def layers_per_chunk(self) -> set[int]:
        """Return the layers whose states are read at every chunk or generated token, and not kept."""
        return {layer for one in (self.segmenter, self.tombstone_scorer) for layer in needs_of(one).hidden_layers}

    def tensors(self, span: tuple[int, int], ids: torch.Tensor, hidden: Hidden) -> dict[str, npt.NDArray[Any]]:
        """Return the tensors to store with a block. A part that lacks states of the block stores nothing."""
        made: dict[str, npt.NDArray[Any]] = {}
        for one in self.block_writers:
            layers = needs_of(one).hidden_layers
            if all(layer in hidden for layer in layers):
                wanted = {layer: hidden[layer] for layer in layers}
                found = one.write_block(None, span, ids, wanted)
                made |= {name: np.ascontiguousarray(tensor) for name, tensor in found.items()}
        return made

    # --- a question is asked and answered

    def prefetch(self, progress: Callable[[], AnswerProgress]) -> None:
        """Have parts prepare what may be needed next. `progress` is made where a part wants it."""
        for one in self._runtime.values():
            if isinstance(one, RecallPrefetcher):
                one.prefetch(progress())

    def on_recalled(self, pages: Sequence[_core.PageRef]) -> None:
        for one in self._runtime.values():
            if isinstance(one, RecallObserver):
                one.on_recalled(pages)

    def adapted(self, frame: Any) -> contextlib.AbstractContextManager[None]:
        """Return what attaches to the model what was trained to read what came back."""
        return contextlib.nullcontext() if self.adapter is None else self.adapter.adapt(frame)

    # --- their life

    def store_state(self, core: _core.Memory) -> None:
        """Write the parts' state into the memory's own files where it changed."""
        for name, one in self._runtime.items():
            state = one.state() if isinstance(one, Stateful) else None
            if state is not None and self._kept.get(name) != state:
                core.put_file(_file(name), zlib.crc32(state).to_bytes(4, "little") + state)
                self._kept[name] = state

    def load_state(self, core: _core.Memory) -> None:
        """Read the parts' state from the memory's own files. A file that is damaged counts as none."""
        for name, one in self._runtime.items():
            kept = core.file(_file(name)) if isinstance(one, Stateful) else None
            if kept is None:
                continue
            if len(kept) >= 4 and zlib.crc32(kept[4:]) == int.from_bytes(kept[:4], "little"):
                one.load_state(kept[4:])
                self._kept[name] = kept[4:]
            else:
                _LOGGER.warning("what the part %s knew is damaged in the memory's folder: it begins anew", name)

    def merge_events(self, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return a trace of the Memory OS with the parts' events in it, each after what was decided up to there."""
        traced = (one for one in self._runtime.values() if isinstance(one, Traced))
        own = sorted((event for one in traced for event in one.events()), key=_place)
        merged: list[dict[str, Any]] = []
        for event in events:
            while own and _place(own[0]) < _place(event):
                merged.append(own.pop(0))
            merged.append(event)
        return merged + own

    def change_settings(self, parts: Sequence[Any]) -> None:
        """Use these settings of parts from now on, for parts that may change between two questions."""
        for one in parts:
            runtime = self._runtime.get(name_of(one))
            if isinstance(runtime, Configurable):
                runtime.settings = one

    def get(self, name: str) -> Any:
        """Return a part at work by its name, to look at it; None where there is none. The core asks for none."""
        return self._runtime.get(name)

    def settle(self) -> None:
        for one in self._runtime.values():
            if isinstance(one, Lifecycle):
                one.settle()

    def close(self) -> None:
        _close(self._runtime.values())


def available_parts(parts: Sequence[Any], pack: Pack | None) -> list[Any]:
    """Return the parts that a pack has something for. ValueError says what to train for one that is not optional."""
    found = []
    for one in parts:
        missing = one.missing(pack) if hasattr(one, "missing") else None
        if missing is None:
            found.append(one)
        elif not getattr(one, "optional", False):
            raise ValueError(missing)
    return found


def _close(parts: Iterable[Any]) -> None:
    for one in parts:
        if isinstance(one, Lifecycle):
            one.close()


def _methods_of(protocol: type) -> frozenset[str]:
    """Return the methods of a protocol, with those of the protocols that it extends."""
    bases = [base for base in protocol.__mro__ if base in PROTOCOLS]
    found = [(name, member) for base in bases for name, member in vars(base).items()]
    return frozenset(name for name, member in found if inspect.isfunction(member) and not name.startswith("_"))


_METHODS = {protocol: _methods_of(protocol) for protocol in PROTOCOLS}


def require_protocols(name: str, one: object) -> None:
    """Raise TypeError where a part's object has a public method that nobody would call.

    No protocol has it, or the object lacks something else of each protocol that does.
    """
    known = sorted(frozenset().union(*_METHODS.values()))
    for member, value in (*getattr(one, "__dict__", {}).items(), *inspect.getmembers_static(type(one))):
        if member.startswith("_") or hasattr(PartSettings, member):
            continue
        if not inspect.isroutine(value) and not isinstance(value, classmethod | staticmethod):
            continue
        having = [protocol for protocol, methods in _METHODS.items() if member in methods]
        if any(isinstance(one, protocol) for protocol in having):
            continue
        wanted = " or ".join(protocol.__name__ for protocol in having)
        expected = f"the rest of {wanted} is missing" if having else f"expected one of {', '.join(known)}"
        raise TypeError(
            f"the part {name}: {type(one).__name__}.{member} is a public method that nobody calls: {expected}, or a "
            "name that begins with _"
        )


def needs_of(one: object) -> Needs:
    """Return the needs of a part's object; none where there is no part."""
    return one.needs if isinstance(one, HasNeeds) else _NOTHING


def _last(parts: Sequence[_Part]) -> _Part | None:
    return parts[-1] if parts else None


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
