"""Where a text's sentences and paragraphs end, token by token. The Memory OS cuts blocks there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch

from everlong.text.control import SUMMARIZE, control_ids

Boundary = tuple[int, Literal["sentence", "paragraph", "turn", "signal"]]  # tokens before it, kind

_NOTHING, _SENTENCE, _LINE, _PARAGRAPH, _SIGNAL = range(5)
_CLOSING = "\"')]*_\u201d\u2019\u00bb"  # may stand between a sentence's full stop and its end
_FULL_STOPS = (".", "!", "?", "\u2026", "\u3002", "\uff01", "\uff1f")


class TextBoundaries:
    """Finds boundaries in token ids. What a token ends is looked up once for every distinct token."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._ends: dict[int, int] = {}
        summarize = control_ids(tokenizer).get(SUMMARIZE)
        if summarize is not None:
            self._ends[summarize] = _SIGNAL

    def find(self, ids: torch.Tensor, previous: int | None = None) -> list[Boundary]:
        """Return the boundaries of ids [n], in order. `previous` is the token before them, if there is one.

        A paragraph ends with an empty line. That may be one token, or two that each end a line.
        """
        tokens = ids.tolist()
        self._learn(set(tokens) if previous is None else {*tokens, previous})
        found: list[Boundary] = []
        before = _NOTHING if previous is None else self._ends[previous]
        for offset, token in enumerate(tokens, 1):
            end = self._ends[token]
            if end == _SIGNAL:
                found.append((offset, "signal"))
            elif end == _PARAGRAPH or (end == _LINE and before in (_LINE, _PARAGRAPH)):
                found.append((offset, "paragraph"))
            elif end == _SENTENCE:
                found.append((offset, "sentence"))
            before = end
        return found

    def _learn(self, tokens: set[int]) -> None:
        new = [token for token in tokens if token not in self._ends]
        for token, text in zip(new, self._texts(new), strict=True):
            self._ends[token] = _end_of(text)

    def _texts(self, tokens: Sequence[int]) -> list[str]:
        texts: list[str] = self._tokenizer.batch_decode(np.asarray(tokens)[:, None]) if tokens else []
        return texts


def _end_of(text: str) -> int:
    trailing = text[len(text.rstrip()) :]
    if trailing.count("\n") >= 2:
        return _PARAGRAPH
    if trailing.count("\n") == 1:
        return _LINE
    return _SENTENCE if text.rstrip().rstrip(_CLOSING).endswith(_FULL_STOPS) else _NOTHING
