"""Where the tokens of a text stand in its file: pages, headings, rows. Each block keeps its own as a tag.

The tag is JSON: pairs of a token, counted from the block's first, and the place that begins there.
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

import everlong._core as _core

_TAG = f"{_core.OWN_TAG}places="


class Places:
    """The places of one text while it is read into a stream."""

    def __init__(self, starts: Sequence[tuple[int, str]], first: int) -> None:
        """`starts`: the first character of each place, ascending. `first`: where the stream goes on."""
        self._characters = [character for character, _ in starts]
        self._names = [name for _, name in starts]
        self._tokens: list[int] = []  # of the text: where each place begins
        self._seen = 0  # tokens of the text
        self._first, self._skipped = first, 0

    def note(self, begins: npt.NDArray[np.int32], read: int) -> None:
        """Note the first characters [n] of the next tokens. `read`: how many of all so far are new to the memory."""
        reached = bisect.bisect_right(self._characters, int(begins[-1])) if len(begins) > 0 else 0
        for character in self._characters[len(self._tokens) : reached]:
            self._tokens.append(self._seen + int(np.searchsorted(begins, character)))
        self._seen += len(begins)
        self._skipped = self._seen - read

    def tags(self, begin: int, end: int) -> tuple[str, ...]:
        """Return the tag for the block of these tokens of the stream; none where the text has no places."""
        begin, end = (token - self._first + self._skipped for token in (begin, end))
        first = max(0, bisect.bisect_right(self._tokens, begin) - 1)
        last = bisect.bisect_left(self._tokens, end)
        told = [[max(0, self._tokens[n] - begin), self._names[n]] for n in range(first, last)]
        return (_TAG + json.dumps(told, ensure_ascii=False),) if any(name for _, name in told) else ()


def place_in(tags: Iterable[str], begin: int, end: int) -> str:
    """Return where tokens [begin, end) of a block stand, by its tags; "" where nobody said."""
    told = next((tag.removeprefix(_TAG) for tag in tags if tag.startswith(_TAG)), "")
    try:
        starts = [(int(token), str(name)) for token, name in json.loads(told or "[]")]
    except (ValueError, TypeError):
        return ""
    ends = [token for token, _ in starts[1:]]
    names = [name for (first, name), last in zip(starts, [*ends, end], strict=False) if first < end and last > begin]
    named = [name for name in names if name]
    if not named:
        return ""
    if named[0] == named[-1]:
        return named[0]
    within = named[0].rpartition(", ")[0]  # as of "Sheet1, row 2" and "Sheet1, row 3"
    return f"{named[0]} to {named[-1].removeprefix(f'{within}, ')}"
