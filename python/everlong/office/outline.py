"""Texts of an office: paragraphs and rows, their sections under headings, and what is left out, by those."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from everlong.files.document import PassedOverError, Section, filled, line_of, paragraph

_MOST_LEFT_OUT = 200  # places that are named each


class Block(NamedTuple):
    """A paragraph, or a row of a table."""

    text: str
    heading: bool = False
    row: bool = False


def row_of(cells: Sequence[Iterable[Block]]) -> Iterator[Block]:
    """Yield a row of cells as one line; where one alone says something, as in a page laid out by tables, its blocks."""
    said = [[block for block in cell if block.text.strip()] for cell in cells]
    if sum(map(bool, said)) <= 1:
        for cell in said:
            yield from cell
        return
    yield Block(" | ".join(map(on_one_line, said)), row=True)


def on_one_line(blocks: Sequence[Block]) -> str:
    """Return blocks on one line."""
    between = "; " if any(block.row for block in blocks) else " "
    return between.join(filter(None, (" ".join(block.text.split()) for block in blocks)))


class Outline:
    """Lines that come one after the other, and the headings among them."""

    def __init__(self, place: str = "") -> None:
        self.place = place
        self._lines: list[str] = []
        self._sections: list[Section] = []
        self._left_out: Counter[tuple[str, str]] = Counter()

    def add(self, blocks: Iterable[Block]) -> None:
        """Put blocks into the section. A heading begins one."""
        for block in blocks:
            if block.heading:
                self.begin(line_of(block.text))
            self._lines.append(block.text)

    def begin(self, place: str) -> None:
        """Begin a section that is cited by a place."""
        if self._lines:
            self._sections.append(paragraph(self.place, "\n".join(self._lines)))
        self.place, self._lines = place, []

    def leave_out(self, what: str) -> None:
        """Note what is not read here."""
        self._left_out[self.place, what] += 1

    def sections(self) -> tuple[Section, ...]:
        """Return all that have text since it was last asked."""
        self.begin("")
        found, self._sections = filled(self._sections), []
        return found

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
