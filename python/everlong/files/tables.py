"""CSV: a section a row. Each value stands behind its column's name."""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Iterable, Iterator, Sequence

from everlong.files.document import Document, NoTextError, Section, cleaned, filled
from everlong.files.plain import decoded

_SNIFFED = 1 << 13  # characters
_LONGEST_FIELD = 1 << 20


def read(data: bytes, suffix: str) -> Iterator[Document]:
    """Yield the table."""
    text = decoded(data)
    csv.field_size_limit(_LONGEST_FIELD)
    dialect: type[csv.Dialect] = csv.excel_tab if suffix == "tsv" else csv.excel
    with contextlib.suppress(csv.Error):
        dialect = csv.Sniffer().sniff(text[:_SNIFFED], delimiters=",;\t|")
    try:
        yield Document(filled(rows_of(csv.reader(io.StringIO(text), dialect), "")))
    except csv.Error as error:
        raise NoTextError(f"is no table: {error}") from None


def rows_of(rows: Iterable[Sequence[str]], before: str) -> Iterator[Section]:
    """Yield a section for each row that has something. The first one that has several names the columns."""
    names: list[str] | None = None
    for number, row in enumerate(rows, 1):
        told = [cleaned(cell).strip() for cell in row]
        if not any(told):
            continue
        if names is None and sum(map(bool, told)) > 1 and not any(map(_is_number, told)):
            names = told
            line = " | ".join(told)
        else:
            line = ", ".join(_named(names or [], column, cell) for column, cell in enumerate(told) if cell)
        yield Section(f"{before}row {number}", line + "\n")


def _named(names: Sequence[str], column: int, cell: str) -> str:
    return f"{names[column]}: {cell}" if column < len(names) and names[column] else cell


def _is_number(cell: str) -> bool:
    try:
        float(cell.replace(",", "."))
    except ValueError:
        return False
    return True
