"""CSV: a section a row. Each value stands behind its column's name."""

from __future__ import annotations

import collections
import csv
import io
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

from everlong.files.column_names import is_named
from everlong.files.document import Document, Section, cleaned, filled
from everlong.files.plain import decoded_with_details

_DELIMITERS = "\t;|,"  # a cell seldom has one that stands before its own
_COMPARED = 1 << 18  # characters by which the delimiter is found
_REREAD = 8  # times the text's length that may be read anew behind quotes that are wrong
_LOOKED_AT = 100  # rows by which the first one is told from data


def read(data: bytes, suffix: str) -> Iterator[Document]:
    """Yield the table."""
    text, details = decoded_with_details(data)
    csv.field_size_limit(len(text) + 1)
    head, _, rest = text.partition("\n")
    if head.lower().startswith("sep=") and len(head.strip("\r")) == 5:  # Excel's
        delimiter, quote, text = head[4], '"', rest
    else:
        delimiter, quote = _dialect_of(text, suffix)
    rows = _Rows(text, delimiter, quote, escaping=_is_escaped(text, delimiter, quote))
    named, sections = _named(rows, "")
    document = Document(filled(sections))
    names = f"row {named} names the columns" if named else "no row names the columns"
    details += (f"cells are separated by {_NAMES.get(delimiter, delimiter)}; {names}",)
    if rows.mended:
        listed = ", ".join(map(str, rows.mended[:5]))
        details += (f"quotes that are not closed, or stand within a cell, are read as they are, from row {listed} on",)
    yield Document(document.sections, details=details)


_NAMES = {"\t": "tabs", ";": "semicolons", "|": "bars", ",": "commas"}


def rows_of(rows: Iterable[Sequence[str]], before: str) -> Iterator[Section]:
    """Yield a section for each row that has something, behind the columns' names where a row says them."""
    yield from _named(rows, before)[1]


def _named(rows: Iterable[Sequence[str]], before: str) -> tuple[int, Iterator[Section]]:
    """Return which row names the columns, 0 for none, and the sections. The rows are looked at once."""
    numbered = ((number, [cleaned(cell).strip() for cell in row]) for number, row in enumerate(rows, 1))
    full_rows = ((number, row) for number, row in numbered if any(row))
    head = list(itertools.islice(full_rows, _LOOKED_AT))
    first = next((at for at, (_, row) in enumerate(head) if sum(map(bool, row)) > 1), None)
    if first is None or not is_named([row for _, row in head[first:]]):
        return 0, _sections(itertools.chain(head, full_rows), 0, [], before)
    number, names = head[first]
    return number, _sections(itertools.chain(head, full_rows), number, names, before)


def _sections(
    rows: Iterable[tuple[int, Sequence[str]]], named: int, names: Sequence[str], before: str
) -> Iterator[Section]:
    heads = [f"{name}: " if name else "" for name in names]
    for number, row in rows:
        if number == named:
            line = " | ".join(row)
        elif number > named > 0:
            beyond = [cell for cell in row[len(heads) :] if cell]
            line = ", ".join([head + cell for head, cell in zip(heads, row, strict=False) if cell] + beyond)
        else:
            last = max(column for column, cell in enumerate(row) if cell)
            line = ", ".join(row[: last + 1])
        yield Section(f"{before}row {number}", line + "\n")


def _dialect_of(text: str, suffix: str) -> tuple[str, str]:
    """Return delimiter and quote by which rows come to be of one length, and their cells have no other delimiter."""
    if len(text) > _COMPARED:
        end = text.rfind("\n", 0, _COMPARED)
        text = text[: end if end > 0 else _COMPARED]
    best, chosen = 0.0, ("\t" if suffix in ("tsv", "tab") else ",", '"')
    quotes = "\"'" if '"' not in text and "'" in text else '"'
    for quote, (at, delimiter) in itertools.product(quotes, enumerate(_DELIMITERS)):
        if delimiter in text:
            score = _likeness(_Rows(text, delimiter, quote), _DELIMITERS[:at])
            if score > 0 and delimiter == "\t" and suffix in ("tsv", "tab"):
                score += 0.2
            if score > best + 0.01:  # so that apostrophes are quotes only where that makes a better table
                best, chosen = score, (delimiter, quote)
    return chosen


def _is_escaped(text: str, delimiter: str, quote: str) -> bool:
    """Return whether a quote within a cell stands behind a backslash, as MySQL writes it, and is not doubled."""
    if f"\\{quote}" not in text:
        return False
    text = text[: text.rfind("\n", 0, _COMPARED) + 1] or text if len(text) > _COMPARED else text
    wrong = []
    for escaping in (True, False):
        rows = _Rows(text, delimiter, quote, escaping=escaping)
        collections.deque(rows, maxlen=0)
        wrong.append(len(rows.mended))
    doubled = re.search(rf"[^{delimiter}\n{quote}]{quote}{quote}|{quote}{quote}[^{delimiter}\n{quote}]", text)
    return wrong[0] < wrong[1] or (wrong[0] == wrong[1] and doubled is None)


def _likeness(rows: _Rows, others: str) -> float:
    """Return how much rows are like a table, from 0 to 1. `others`: delimiters that their cells should not have."""
    lengths: collections.Counter[int] = collections.Counter()
    cells = odd = loose = 0
    for row in rows:
        if any(cell.strip() for cell in row):
            lengths[len(row)] += 1
            cells += len(row)
            odd += sum(any(other in cell for other in others) for cell in row)
            loose += sum(cell.startswith(" ") for cell in row[1:])
    several = max((length for length in lengths if length > 1), key=lambda length: lengths[length], default=0)
    if not several:
        return 0.0
    alike = lengths[several] / lengths.total()
    wrong = len(rows.mended) / lengths.total()
    return alike * (1 - 0.6 * odd / cells) * (1 - 0.4 * loose / cells) * (1 - 0.5 * wrong)


class _Rows:
    """The rows of a text. A quote that is wrong costs its own row alone."""

    def __init__(self, text: str, delimiter: str, quote: str, *, escaping: bool = False) -> None:
        self._source, self._delimiter, self._quote = io.StringIO(text), delimiter, quote
        self._escape = "\\" if escaping else None
        self._no_escape = re.compile(rf"\\(?![\\{quote}])")
        self._left = _REREAD * len(text)
        self._back: collections.deque[str] = collections.deque()
        self._taken: list[str] = []
        self.mended: list[int] = []  # rows whose quotes are wrong

    def __iter__(self) -> Iterator[list[str]]:
        number = 0
        reader = self._reader(self._lines())
        while True:
            self._taken = []
            number += 1
            try:
                row = next(reader)
            except StopIteration:
                return
            except csv.Error:
                self.mended.append(number)
                row = self._mended()
                reader = self._reader(self._lines())
            yield row

    def _reader(self, lines: Iterable[str]) -> Iterator[list[str]]:
        strict = self._left > 0
        return csv.reader(
            lines, delimiter=self._delimiter, quotechar=self._quote, escapechar=self._escape, strict=strict
        )

    def _lines(self) -> Iterator[str]:
        while True:
            line = self._back.popleft() if self._back else self._source.readline()
            if not line:
                return
            self._taken.append(line)
            yield self._no_escape.sub(r"\\\\", line) if self._escape and "\\" in line else line

    def _mended(self) -> list[str]:
        """Return the row that the lines taken begin with; what is not of it is read anew."""
        taken, self._taken = self._taken, []
        self._left -= sum(map(len, taken))
        self._back.extendleft(reversed(taken[1:]))
        line = taken[0].rstrip("\n")
        if line.count(self._quote) % 2:
            return line.split(self._delimiter)
        return next(csv.reader([line], delimiter=self._delimiter, quotechar=self._quote), [])
