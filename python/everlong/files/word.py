"""DOCX, by python-docx: a section for each heading."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

from everlong.files.dates import seconds_of
from everlong.files.document import Document, NoTextError, Section, filled, line_of, paragraph


def read(data: bytes, suffix: str) -> Iterator[Document]:
    """Yield the document, with its tables where they stand."""
    import docx
    from docx.opc.exceptions import PackageNotFoundError

    try:
        found = docx.Document(io.BytesIO(data))
    except (PackageNotFoundError, KeyError, ValueError) as error:
        raise NoTextError(f"is no whole DOCX: {error}") from None
    about = found.core_properties
    yield Document(
        filled(_sections(found)),
        title=line_of(about.title),
        author=line_of(about.author),
        happened=seconds_of(about.created or about.modified),
    )


def _sections(found: Any) -> Iterator[Section]:
    place, said = "", []
    for part in found.iter_inner_content():
        if hasattr(part, "rows"):
            said += [" | ".join(" ".join(cell.text.split()) for cell in row.cells) for row in part.rows]
            continue
        style = getattr(part.style, "name", None) or ""
        if style.startswith(("Heading", "Title")) and part.text.strip():
            yield paragraph(place, "\n".join(said))
            place, said = line_of(part.text), []
        said.append(part.text)
    yield paragraph(place, "\n".join(said))
