"""A frame of text: what leaves it is archived as token ids; what comes back is read again before the newest text."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

import everlong._core as _core
from everlong.config import MemoryConfig
from everlong.frame.budget import FrameBytes
from everlong.frame.checkpoint import Checkpoint
from everlong.frame.frame import Frame
from everlong.frame.parts import Parts
from everlong.frame.stream import Stream
from everlong.frame.transfer import Archived
from everlong.frame.zones import PreparedRecall, Zones
from everlong.memory import Memory
from everlong.models.text_model import TextModel
from everlong.models.tokens import Tokens
from everlong.text.prompt import start_ids


@dataclasses.dataclass(frozen=True, eq=False)
class _SoftTokens:
    """A soft token. It equals no other one."""

    embed: torch.Tensor  # [hidden size]
    id: int  # the id that stands for it


_Token = int | _SoftTokens


class TextZones(Zones):
    """Sinks, recalled and rolling as one text, which the model reads as far as an answer needs it.

    Text that is only read costs no forward. The model's cache stays as long as text is only added to what it has seen.
    A recall or an eviction changes the text before its end: then it is read from its beginning. Soft tokens are read as
    they are while they are resident. Recalled, they come back as the ids that stand for them.
    """

    def __init__(self, served: TextModel, stream: Stream, start: Sequence[int]) -> None:
        """start: what begins every text."""
        self._served, self._stream, self._start = served, stream, start
        self._sinks: list[_Token] = []
        self._recalled: list[_Token] = []
        self._rolling: list[_Token] = []
        self._seen: list[_Token] = []  # the text that `_cache` stands for
        self._cache: Any = None

    @property
    def resident_tokens(self) -> int:
        return len(self.resident())

    @property
    def bytes(self) -> FrameBytes:
        tokens = self._stream.config.frame.tokens
        return FrameBytes(slots=tokens * self._served.kv_token_bytes, long_lived=0, own_layers=0)

    def resident(self) -> list[_Token]:
        """Return all that is resident, in order, and not hidden."""
        begin, visible, rolling = self._stream.os.rolling[0], self._stream.visible, self._rolling
        if visible is not None:
            rolling = list(itertools.compress(rolling, visible.span(begin, begin + len(rolling))))
        return [*self._sinks, *self._recalled, *rolling]

    def compute(self, chunk: Tokens, *, keep_all: bool, needed: bool) -> torch.Tensor:
        sinks, rolling = len(self._sinks), len(self._rolling)
        new: list[_Token] = list(chunk.ids.tolist())
        if chunk.embeds is not None:
            new = [_SoftTokens(embed, token) for embed, token in zip(chunk.embeds, chunk.ids.tolist(), strict=True)]
        # Once tokens were evicted none become sinks any more, even where sinks were forgotten.
        os, sink_tokens = self._stream.os, self._stream.config.frame.sink_tokens
        first = 0 if os.evicted else max(0, min(len(chunk), sink_tokens - os.sinks))
        self._sinks += new[:first]
        self._rolling += new[first:]
        if not needed:
            return torch.zeros(0, device="cpu")
        try:
            return self._read(len(chunk) if keep_all else 1)
        except BaseException:
            del self._sinks[sinks:], self._rolling[rolling:]
            self._seen, self._cache = [], None
            self._stream.steps.broken = False
            raise

    def _read(self, keep: int) -> torch.Tensor:
        """Return the logits [keep, V] of the newest tokens."""
        text, seen = self.resident(), self._seen
        if len(text) - len(seen) < keep or text[: len(seen)] != seen:
            seen, self._cache = [], None
        tokens = self._tokens(text[len(seen) :])
        self._seen = []  # nothing, until the cache is there again
        cache, self._cache = self._cache, None
        chunk_tokens = self._stream.config.frame.chunk_tokens
        logits, self._cache = self._served.read(tokens, cache, keep=keep, chunk_tokens=chunk_tokens)
        self._seen = text
        return logits

    def _tokens(self, text: Sequence[_Token]) -> Tokens:
        ids = torch.tensor(_ids_of(text), dtype=torch.int64, device="cpu")
        if not any(isinstance(token, _SoftTokens) for token in text):
            return Tokens(ids)
        embeds = self._served.model.get_input_embeddings()(ids.to(self._served.device)).clone()
        for row, token in enumerate(text):
            if isinstance(token, _SoftTokens):
                embeds[row] = token.embed
        return Tokens(ids, embeds)

    def payload(self, action: _core.Archive, rolling_begin: int) -> Callable[[], Archived]:
        return lambda: np.zeros(0, dtype=np.uint8)

    def evict(self, action: _core.Evict, rolling_begin: int) -> None:
        del self._rolling[: action.tokens]

    def place(self, placements: Sequence[_core.Placement], prepared: PreparedRecall) -> None:
        self._recalled = self._stream.ids_of(placements).tolist()

    def narrow(self) -> None:
        visible, sinks = self._stream.visible, len(self._sinks)
        if visible is not None and not visible.whole(0, sinks):
            self._sinks = list(self._start)

    def come_back(self, stream_end: int, last: Checkpoint, archived_until: int | None) -> None:
        ids = self._stream.ids_of(self._stream.resume(stream_end, last, archived_until)).tolist()
        self._sinks, self._rolling = ids[: self._stream.os.sinks], ids[self._stream.os.sinks :]

    def begin_anew(self) -> None:
        self._sinks, self._recalled, self._rolling, self._seen, self._cache = [], [], [], [], None

    def detach(self) -> None:
        """Do nothing: this frame has no hooks on the model."""

    def remember(self) -> Callable[[], None]:
        kept = list(self._sinks), list(self._recalled), list(self._rolling)

        def put_back() -> None:
            self._sinks, self._recalled, self._rolling = kept

        return put_back


class TextFrame(Frame):
    """A frame whose zones hold text alone."""

    served: TextModel
    zones: TextZones

    def __init__(
        self, served: TextModel, memory: Memory, config: MemoryConfig, tokenizer: Any, parts: Parts | None = None
    ) -> None:
        self.served = served
        stream = Stream(memory, config, parts)
        super().__init__(stream, TextZones(served, stream, start_ids(tokenizer)), tokenizer)

    @property
    def text(self) -> list[int]:
        """Token ids of all that is resident, in order."""
        return _ids_of(self.zones.resident())


def _ids_of(text: Sequence[_Token]) -> list[int]:
    return [token.id if isinstance(token, _SoftTokens) else token for token in text]
