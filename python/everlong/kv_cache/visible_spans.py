"""Which tokens of a stream a question may attend to."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int64]
VisibleMask = npt.NDArray[np.bool_]

_NO_END = 1 << 62


@dataclasses.dataclass(frozen=True)
class VisibleSpans:
    """Spans of a stream, as a value: what passes a question's filter, and the question itself."""

    begins: Tokens  # ascending, and none overlaps the next
    ends: Tokens

    @classmethod
    def of(cls, passing: Sequence[tuple[int, int]], question: int) -> VisibleSpans:
        """Show these spans, and all from token `question` on."""
        spans = np.array([*sorted(passing), (question, _NO_END)], dtype=np.int64)
        return cls(spans[:, 0], spans[:, 1])

    def runs(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Return what of [begin, end) is shown, in order."""
        cut = zip(self.begins.clip(begin, end).tolist(), self.ends.clip(begin, end).tolist(), strict=True)
        return [(first, last) for first, last in cut if first < last]

    def whole(self, begin: int, end: int) -> bool:
        """Return whether all of [begin, end) is shown."""
        return sum(last - first for first, last in self.runs(begin, end)) == end - begin

    def tokens(self, tokens: Sequence[int] | Tokens) -> VisibleMask:
        """Return for each token whether it is shown."""
        places = np.searchsorted(self.begins, np.asarray(tokens, dtype=np.int64), side="right") - 1
        shows: VisibleMask = (places >= 0) & (np.asarray(tokens, dtype=np.int64) < self.ends[places])
        return shows

    def span(self, begin: int, end: int) -> VisibleMask:
        """Return the same for the tokens of [begin, end)."""
        return self.tokens(np.arange(begin, end))
