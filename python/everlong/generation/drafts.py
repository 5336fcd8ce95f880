"""Drafts of what an answer will say next, from what stands before it: recalled pages, quotes, the question, itself.

An answer from a memory often repeats what came back. Where its newest tokens stand in that text, the draft is what
follows them there (prompt lookup decoding). It is computed together with the next token (generation/speculation.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

# The newest tokens that are looked up: three, or else two. One alone is followed by too many things.
_LONGEST, _SHORTEST = 3, 2
_FIRST = 4  # tokens of the first draft
_MOST_WAITING = 64


class Drafts:
    """Drafts for one answer. The better the last ones were, the longer the next; after bad ones there is a pause."""

    def __init__(self, texts: Iterable[Sequence[int]], most: int) -> None:
        """`texts` are token ids, each by itself; the latest of them is believed most. `most` tokens make a draft."""
        self._most = most
        self._tokens: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}  # where the newest run of these tokens ended
        self._run = 0  # tokens since the text that stands at the end of `_tokens` began
        self._draft: list[int] = []  # what is left of the draft under way
        self._length, self._right = min(_FIRST, most), 0  # of drafts now; tokens of the draft under way that came true
        self._waiting, self._wait = 0, 1
        for text in texts:
            self._run = 0
            for token in text:
                self._add(token)

    def next(self, token: int) -> Sequence[int]:
        """Note the answer's next token. Return what may follow it; nothing for a token of an earlier draft."""
        self._add(token)
        if self._draft and self._draft[0] == token:
            del self._draft[0]
            self._right += 1
            if not self._draft:
                self._learn(whole=True)
            return ()
        if self._draft:
            self._learn(whole=False)
        return self._propose()

    def _add(self, token: int) -> None:
        """Note a token, and what it followed."""
        for length in range(_SHORTEST, _LONGEST + 1):
            if self._run >= length:
                self._after[tuple(self._tokens[-length:])] = len(self._tokens)
        self._tokens.append(token)
        self._run += 1

    def _learn(self, *, whole: bool) -> None:
        if whole:
            self._length = min(self._most, 2 * self._length)
        else:
            self._length = min(self._most, max(2, self._right + 1))
        self._waiting, self._wait = (0, 1) if self._right > 0 else (self._wait, min(_MOST_WAITING, 2 * self._wait))
        self._draft, self._right = [], 0

    def _propose(self) -> Sequence[int]:
        if self._waiting > 0:
            self._waiting -= 1
            return ()
        for length in range(_LONGEST, _SHORTEST - 1, -1):
            at = self._after.get(tuple(self._tokens[-length:])) if self._run >= length else None
            if at is not None:
                self._draft = self._tokens[at : at + self._length]
                return tuple(self._draft)
        return ()
