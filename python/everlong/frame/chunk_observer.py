"""What is heard of a chunk while the model computes it: hidden states, and where blocks may end."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from everlong.frame.observers import Observers
from everlong.frame.part import Hidden, TopicSegmenter
from everlong.frame.parts import needs_of
from everlong.frame.read_request import Computed
from everlong.frame.stream import Stream
from everlong.frame.taps import HiddenTap
from everlong.frame.zones import Zones
from everlong.models.model_interface import ModelInterface
from everlong.models.tokens import Tokens
from everlong.text.boundaries import Boundary, TextBoundaries

_NO_TOPICS = np.zeros(0, dtype=np.float32)


class ChunkObserver:
    """Listens to the model for one frame."""

    def __init__(
        self, served: ModelInterface, stream: Stream, zones: Zones, observers: Observers, tokenizer: Any
    ) -> None:
        self._model, self._stream, self._zones, self._observers = served.model, stream, zones, observers
        self._boundaries = TextBoundaries(tokenizer)
        self._topics_until: int | None = None  # up to where topics of the text being read were scored

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers whose hidden states are kept until a block is archived, or tokens leave. All of them are read."""
        wanted: set[int] = set()
        if self._stream.os.archiving:
            wanted |= {*self._observers.hidden_layers, *self._stream.parts.layers_until_archived()}
        # A span leaves whether or not it was archived.
        return tuple(sorted(wanted | self._stream.parts.layers_until_evicted()))

    def require_readable(self, layers: Sequence[int] | None = None) -> None:
        """Refuse layers that cannot be read; without `layers` those that are read anyway."""
        if layers is None:
            layers = (*self.layers, *self._stream.parts.layers_per_chunk())
        if layers:
            HiddenTap(self._model, {*layers})

    def compute(
        self,
        chunk: Tokens,
        hidden_layers: Sequence[int],
        *,
        keep_all: bool,
        needed: bool,
        precomputed: Computed | None = None,
    ) -> Computed:
        """Have the chunk computed, with hidden states of these layers too.

        `precomputed`: what `compute_ahead` gave for the chunk's one token. It is used where it still holds.
        """
        layers = {*hidden_layers, *self.layers}
        if precomputed is not None and precomputed.hidden.keys() >= layers and self._zones.adopt():
            return precomputed
        if not layers:
            return Computed(self._zones.compute(chunk, keep_all=keep_all, needed=needed), {})
        # Layers that use other layers' keys may compute only the tokens whose logits are asked for.
        config = self._model.config.get_text_config(decoder=True)
        all_rows = keep_all or bool(getattr(config, "num_kv_shared_layers", 0))
        with HiddenTap(self._model, layers) as tap:
            logits = self._zones.compute(chunk, keep_all=all_rows, needed=True)
        hidden = {layer: tap.hidden(layer)[-len(chunk) :] for layer in layers}
        return Computed(logits if keep_all else logits[-1:], hidden)

    def compute_ahead(self, chunk: Tokens) -> Computed | None:
        """Compute tokens behind the newest one, and put none of them there. None where they are of no use."""
        layers = self.layers
        with HiddenTap(self._model, layers) if layers else contextlib.nullcontext() as tap:
            logits = self._zones.compute_ahead(chunk)
        if logits is None:
            return None
        return Computed(logits, {} if tap is None else {layer: tap.hidden(layer)[-len(chunk) :] for layer in layers})

    def boundaries(self, chunk: torch.Tensor, *, turn: bool) -> list[Boundary]:
        """Return where blocks may end in this chunk. A prompt begins where a turn of the conversation ended."""
        before, self._stream.last_id = self._stream.last_id, int(chunk[-1])
        if not self._stream.os.archiving:
            return []
        found = self._boundaries.find(chunk, before)
        return [(0, "turn"), *found] if turn else found

    def topic_ends(self, ends: TopicSegmenter | None, ids: torch.Tensor, hidden: Hidden) -> npt.NDArray[np.float32]:
        """Return how probably topics end in a chunk that is read, by the part `ends`; None: no part says."""
        if ends is None:
            return _NO_TOPICS
        stream_end = self._stream.os.stream_end
        begins = self._topics_until != stream_end  # a text begins, or something else came in between
        wanted = {layer: hidden[layer] for layer in needs_of(ends).hidden_layers}
        found = ends.boundary_probabilities(ids, wanted, begins=begins)
        self._topics_until = stream_end + len(found)
        return found

    def end_text(self) -> None:
        """Note that the text which was read ends."""
        self._topics_until = None
