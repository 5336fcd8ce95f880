"""XLSX, by openpyxl: a section a row, of what its cells show."""

from __future__ import annotations

import io
import itertools
import zipfile
from collections.abc import Iterator

from everlong.files.dates import seconds_of
from everlong.files.document import Document, NoTextError, Section, filled, line_of
from everlong.files.tables import rows_of


def read(data: bytes, suffix: str) -> Iterator[Document]:
    """Yield the workbook, its sheets one after the other."""
    import openpyxl
    from openpyxl.utils.exceptions import InvalidFileException

    try:
        book = openpyxl.load_workbook(io.BytesIO(data), read_only=True, data_only=True)
    except (InvalidFileException, zipfile.BadZipFile, KeyError, ValueError, TypeError) as error:
        raise NoTextError(f"is no whole XLSX: {error}") from None
    sections: list[Section] = []
    for sheet in book.worksheets:
        sheet.reset_dimensions()  # what a file says of its size may be anything
        cells = ([line_of(cell) if cell is not None else "" for cell in row] for row in sheet.values)
        name = line_of(sheet.title)
        rows = list(rows_of(cells, f"{name}, "))
        sections += itertools.chain([Section("", f"{name}\n\n")] if rows else [], rows, [Section("", "\n")])
    about = book.properties
    yield Document(
        filled(sections),
        title=line_of(about.title),
        author=line_of(about.creator),
        happened=seconds_of(about.created or about.modified),
    )
