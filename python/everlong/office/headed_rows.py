"""Rows of a sheet as lines: each value behind the name of its column, where a row above names the columns.

A sheet may have several tables, one below the other, with titles between them. The first row with several texts and no
number names the columns. Behind an empty row another one does, where what stands below it are numbers; where that is
not sure, columns have no names, so that none has a wrong one. Tables that the sheet states are sure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple


class Cell(NamedTuple):
    """What a cell shows."""

    text: str
    is_text: bool = False  # and no number, date or formula


class Table(NamedTuple):
    """Where a table lies: its first row names its columns. Rows and columns are counted from 1 on."""

    top: int
    left: int
    bottom: int
    right: int


class HeadedRows:
    """Takes the rows of a sheet in their order, and gives lines. A row may be held back until the next one is known."""

    def __init__(self, tables: Sequence[Table] = ()) -> None:
        self._tables = {table: dict[int, str]() for table in tables}
        self._names: Mapping[int, str] = {}
        self._named = False  # whether any row named columns
        self._last = 0  # the row that had something last
        self._held: tuple[int, Mapping[int, Cell]] | None = None  # which names columns, if numbers follow

    def add(self, number: int, cells: Mapping[int, Cell]) -> Iterator[tuple[int, str]]:
        """Take a row, its cells by their columns from 1 on. Yield the numbers and lines of rows that are done."""
        if not cells:
            return
        behind_empty, self._last = number > self._last + 1, number
        names = len(cells) > 1 and all(cell.is_text for cell in cells.values())
        if self._held is not None:
            held, above = self._held
            self._held = None
            sure = not behind_empty and any(not cell.is_text for column, cell in cells.items() if column in above)
            self._names = {column: cell.text for column, cell in above.items()} if sure else {}
            yield held, _listed(above)
        for table, columns in self._tables.items():
            if table.top == number:
                columns |= {at: cell.text for at, cell in cells.items() if table.left <= at <= table.right}
                names = False
        if names and not self._named:
            self._named = True
            self._names = {column: cell.text for column, cell in cells.items()}
            yield number, _listed(cells)
        elif names and behind_empty:
            self._held = number, cells
        else:
            yield number, self._line(number, cells)

    def end(self) -> Iterator[tuple[int, str]]:
        """Yield what is held back."""
        if self._held is not None:
            yield self._held[0], _listed(self._held[1])
            self._held = None

    def _line(self, number: int, cells: Mapping[int, Cell]) -> str:
        names = dict(self._names)
        heads = False
        for table, columns in self._tables.items():
            if table.top <= number <= table.bottom:
                heads |= table.top == number
                names = {at: name for at, name in names.items() if not table.left <= at <= table.right}
                names |= columns if table.top < number else {}
        if heads or not any(column in names for column in cells):
            return _listed(cells)
        return ", ".join(f"{names[at]}: {cell.text}" if at in names else cell.text for at, cell in cells.items())


def _listed(cells: Mapping[int, Cell]) -> str:
    return " | ".join(cell.text for cell in cells.values())
