"""Sections of a text under its headings, and what of it is left out, by those."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from everlong.files.document import PassedOverError, Section, filled, line_of, paragraph

_MOST_LEFT_OUT = 200  # places that are named each


class Outline:
    """Lines that come one after the other, and the headings among them."""

    def __init__(self, place: str = "") -> None:
        self.place = place
        self._lines: list[str] = []
        self._sections: list[Section] = []
        self._left_out: Counter[tuple[str, str]] = Counter()

    def add(self, line: str) -> None:
        """Put a line into the section."""
        self._lines.append(line)

    def heading(self, line: str) -> None:
        """Begin a section with its heading."""
        self.begin(line_of(line))
        self._lines.append(line)

    def begin(self, place: str) -> None:
        """Begin a section that is cited by a place."""
        if self._lines:
            self._sections.append(paragraph(self.place, "\n".join(self._lines)))
        self.place, self._lines = place, []

    def leave_out(self, what: str) -> None:
        """Note what is not read here."""
        self._left_out[self.place, what] += 1

    def sections(self) -> tuple[Section, ...]:
        """Return all that have text."""
        self.begin("")
        return filled(self._sections)

    def passed_over(self) -> Iterator[PassedOverError]:
        """Yield what was left out, by its places."""
        rest = 0
        for number, ((place, what), count) in enumerate(self._left_out.items()):
            if number < _MOST_LEFT_OUT:
                times = f", {count} times" if count > 1 else ""
                yield PassedOverError(", ".join(filter(None, (place, what))), f"is not read{times}")
            else:
                rest += count
        if rest:
            yield PassedOverError("and more of that", f"is not read, {rest:,} times")
