"""Texts whose reading is interrupted."""

from __future__ import annotations

import signal
from collections.abc import Iterator


class Interrupted:
    """Yields pieces of text. Ctrl-C arrives before piece number `after`, counted from 0."""

    def __init__(self, pieces: list[str], after: int) -> None:
        self.pieces, self.after = pieces, after

    def __iter__(self) -> Iterator[str]:
        for index, piece in enumerate(self.pieces):
            if index == self.after:
                signal.raise_signal(signal.SIGINT)
            yield piece
