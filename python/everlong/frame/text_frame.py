"""A frame of text: what leaves it is archived as token ids; what comes back is read again before the newest text."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

import everlong._core as _core
from everlong.config import MemoryConfig
from everlong.frame.budget import FrameBytes
from everlong.frame.checkpoint import Checkpoint
from everlong.frame.details import SoftBlock
from everlong.frame.frame import Frame, Page
from everlong.frame.kept_payload import KeptPayload
from everlong.frame.parts import Parts
from everlong.frame.transfer import Archived
from everlong.memory import Memory
from everlong.models.text_model import TextModel
from everlong.models.tokens import Tokens


@dataclasses.dataclass(frozen=True, eq=False)
class _Soft:
    """A soft token. It equals no other one."""

    embed: torch.Tensor  # [hidden size]
    id: int  # the id that stands for it


_Token = int | _Soft


class TextFrame(Frame):
    """Sinks, recalled and rolling as one text, which the model reads as far as an answer needs it.

    Text that is only read costs no forward. The model's cache stays as long as text is only added to what it has seen.
    A recall or an eviction changes the text before its end: then it is read from its beginning. Soft tokens are read as
    they are while they are resident. Recalled, they come back as the ids that stand for them.
    """

    served: TextModel

    def __init__(
        self, served: TextModel, memory: Memory, config: MemoryConfig, tokenizer: Any, parts: Parts | None = None
    ) -> None:
        super().__init__(memory, config, tokenizer, parts)
        self.served = served
        self._sinks: list[_Token] = []
        self._recalled: list[_Token] = []
        self._rolling: list[_Token] = []
        self._seen: list[_Token] = []  # the text that `_cache` stands for
        self._cache: Any = None
        self._resume()

    @property
    def text(self) -> list[int]:
        """Token ids of all that is resident, in order."""
        return _ids_of(self._resident())

    @property
    def resident_tokens(self) -> int:
        return len(self._resident())

    @property
    def bytes(self) -> FrameBytes:
        tokens = self.config.frame.tokens
        return FrameBytes(slots=tokens * self.served.kv_token_bytes, long_lived=0, own_layers=0)

    def _resident(self) -> list[_Token]:
        return [*self._sinks, *self._recalled, *self._rolling]

    def _compute(self, chunk: Tokens, *, keep_all: bool, needed: bool) -> torch.Tensor:
        sinks, rolling = len(self._sinks), len(self._rolling)
        new: list[_Token] = list(chunk.ids.tolist())
        if chunk.embeds is not None:
            new = [_Soft(embed, token) for embed, token in zip(chunk.embeds, chunk.ids.tolist(), strict=True)]
        # Once tokens were evicted none become sinks any more, even where sinks were forgotten.
        first = 0 if self.os.evicted else max(0, min(len(chunk), self.config.frame.sink_tokens - self.os.sinks))
        self._sinks += new[:first]
        self._rolling += new[first:]
        if not needed:
            return torch.zeros(0, device="cpu")
        try:
            return self._read(len(chunk) if keep_all else 1)
        except BaseException:
            del self._sinks[sinks:], self._rolling[rolling:]
            self._seen, self._cache = [], None
            self._broken = False
            raise

    def _read(self, keep: int) -> torch.Tensor:
        """Return the logits [keep, V] of the newest tokens."""
        text, seen = self._resident(), self._seen
        if len(text) - len(seen) < keep or text[: len(seen)] != seen:
            seen, self._cache = [], None
        tokens = self._tokens(text[len(seen) :])
        self._seen = []  # nothing, until the cache is there again
        cache, self._cache = self._cache, None
        logits, self._cache = self.served.read(tokens, cache, keep=keep, chunk_tokens=self.config.frame.chunk_tokens)
        self._seen = text
        return logits

    def _tokens(self, text: Sequence[_Token]) -> Tokens:
        ids = torch.tensor(_ids_of(text), dtype=torch.int64, device="cpu")
        if not any(isinstance(token, _Soft) for token in text):
            return Tokens(ids)
        embeds = self.served.model.get_input_embeddings()(ids.to(self.served.device)).clone()
        for row, token in enumerate(text):
            if isinstance(token, _Soft):
                embeds[row] = token.embed
        return Tokens(ids, embeds)

    def _payload(self, action: _core.Archive, rolling_begin: int) -> Callable[[], Archived]:
        return lambda: np.zeros(0, dtype=np.uint8)

    def _evict(self, action: _core.Evict, rolling_begin: int) -> None:
        del self._rolling[: action.tokens]

    def _place(
        self,
        placements: Sequence[_core.Placement],
        temperature: Mapping[Page, float],
        best: Sequence[_core.PageRef],
        kept: Mapping[int, KeptPayload],
        soft: Mapping[int, SoftBlock],
    ) -> None:
        self._recalled = self._token_ids(placements).tolist()

    def _come_back(self, stream_end: int, last: Checkpoint, archived_until: int | None) -> None:
        ids = self._token_ids(self._resident_again(stream_end, last, archived_until)).tolist()
        self._sinks, self._rolling = ids[: self.os.sinks], ids[self.os.sinks :]

    def _detach(self) -> None:
        """Do nothing: this frame has no hooks on the model."""

    def _remember(self) -> Callable[[], None]:
        kept = list(self._sinks), list(self._recalled), list(self._rolling)

        def put_back() -> None:
            self._sinks, self._recalled, self._rolling = kept

        return put_back


def _ids_of(text: Sequence[_Token]) -> list[int]:
    return [token.id if isinstance(token, _Soft) else token for token in text]
