"""Stop strings of an answer: it ends before the first one, and nothing of one is ever sent."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Takes an answer piece by piece, and gives what may be sent."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = tuple(strings)
        self._held = ""  # what may be the beginning of a stop string
        self.stopped = False

    def more(self, piece: str) -> str:
        """Return what may be sent now that this piece came."""
        if self.stopped:
            return ""
        text = self._held + piece
        found = [place for place in map(text.find, self._strings) if place >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        kept = max((self._begun(text, stop) for stop in self._strings), default=0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def rest(self) -> str:
        """Return what was held back, at the end of the answer."""
        held, self._held = self._held, ""
        return held

    @staticmethod
    def _begun(text: str, stop: str) -> int:
        """Return how many of the last characters of the text begin the stop string."""
        most = min(len(text), len(stop) - 1)
        return next((count for count in range(most, 0, -1) if text.endswith(stop[:count])), 0)
