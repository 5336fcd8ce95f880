"""A frame of text: what leaves it is archived as token ids, what comes back is read again before the newest text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

import everlong._core as _core
from everlong.config import MemoryConfig
from everlong.frame.checkpoint import Checkpoint
from everlong.frame.frame import Frame, Page
from everlong.frame.transfer import Bytes
from everlong.memory import Memory
from everlong.models.text_model import TextModel


class TextFrame(Frame):
    """Sinks, recalled and rolling as one text, which the model reads as far as an answer needs it.

    Text that is only read costs no forward. The model's cache stays as long as the text that it has seen goes on; where
    that changed before its end (another recall, an eviction), the text is read from its beginning.
    """

    served: TextModel

    def __init__(self, served: TextModel, memory: Memory, config: MemoryConfig, tokenizer: Any) -> None:
        super().__init__(memory, config, tokenizer)
        self.served = served
        self._sinks: list[int] = []
        self._recalled: list[int] = []
        self._rolling: list[int] = []
        self._seen: list[int] = []  # the text that `_cache` stands for
        self._cache: Any = None
        self._resume()

    @property
    def text(self) -> list[int]:
        """Token ids of all that is resident, in order."""
        return [*self._sinks, *self._recalled, *self._rolling]

    def _compute(self, chunk: torch.Tensor, *, keep_all: bool, needed: bool) -> torch.Tensor:
        sinks, rolling = len(self._sinks), len(self._rolling)
        # What has left the frame takes its sinks along where they were forgotten: none are added any more.
        first = 0 if self.os.evicted else max(0, min(len(chunk), self.config.sink_tokens - self.os.sinks))
        self._sinks += chunk[:first].tolist()
        self._rolling += chunk[first:].tolist()
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
        """Logits [keep, V] of the newest tokens."""
        text, seen = self.text, self._seen
        if len(text) - len(seen) < keep or text[: len(seen)] != seen:
            seen, self._cache = [], None
        ids = torch.tensor(text[len(seen) :], dtype=torch.int64, device="cpu")
        self._seen = []  # nothing, until the cache is there again
        cache, self._cache = self._cache, None
        logits, self._cache = self.served.read(ids, cache, keep=keep, chunk_tokens=self.config.chunk_tokens)
        self._seen = text
        return logits

    def _payload(self, action: _core.Archive, rolling_begin: int) -> Bytes:
        return np.zeros(0, dtype=np.uint8)

    def _evict(self, action: _core.Evict, rolling_begin: int) -> None:
        del self._rolling[: action.tokens]

    def _place(
        self, placements: Sequence[_core.Placement], temperature: Mapping[Page, float], best: Sequence[_core.PageRef]
    ) -> None:
        self._recalled = self._token_ids(placements).tolist()

    def _come_back(self, stream_end: int, last: Checkpoint, archived_until: int | None) -> None:
        ids = self._token_ids(self._resident_again(stream_end, last, archived_until)).tolist()
        self._sinks, self._rolling = ids[: self.os.sinks], ids[self.os.sinks :]

    def detach(self) -> None:
        """Nothing listens."""

    def _remember(self) -> Callable[[], None]:
        kept = list(self._sinks), list(self._recalled), list(self._rolling)

        def put_back() -> None:
            self._sinks, self._recalled, self._rolling = kept

        return put_back
