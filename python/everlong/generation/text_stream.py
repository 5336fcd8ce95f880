"""What is sent of an answer: its text in pieces, as far as whoever asked wants it."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any, Protocol

from everlong.text.encoding import incremental_decode_in_steps


class StopFilter(Protocol):
    """Ends an answer at a place in its text."""

    stopped: bool

    def more(self, piece: str) -> str:
        """Return what may be sent now that this piece came."""

    def rest(self) -> str:
        """Return what was held back, at the end of the answer."""


class TextStream:
    """The text of one answer on its way out."""

    def __init__(self, tokenizer: Any, cuts: StopFilter | None = None) -> None:
        self._tokenizer, self._cuts = tokenizer, cuts
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        """All that was sent so far."""
        return "".join(self._pieces)

    @property
    def may_cut(self) -> bool:
        return self._cuts is not None

    @property
    def is_whole(self) -> bool:
        """Whether the answer's tokens say what was sent, and no more. An unfinished character was sent as U+FFFD."""
        return not (self._cuts is not None and self._cuts.stopped) and "\ufffd" not in self.text

    def pieces(self, answer: Generator[int | None]) -> Generator[str]:
        """Yield what may be sent: a piece for each step of the answer, also an empty one. The answer is closed then."""
        with (
            contextlib.closing(answer),
            contextlib.closing(incremental_decode_in_steps(self._tokenizer, answer)) as said,
        ):
            for piece in said:
                yield self._sent(piece if self._cuts is None else self._cuts.more(piece))
                if self._cuts is not None and self._cuts.stopped:
                    break
        if self._cuts is not None and (rest := self._cuts.rest()):
            yield self._sent(rest)

    def _sent(self, piece: str) -> str:
        self._pieces.append(piece)
        return piece
