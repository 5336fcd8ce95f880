"""PDF, by pypdf: a section a page."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator

from everlong.files.dates import seconds_of
from everlong.files.document import Document, NoTextError, filled, line_of, paragraph


def read(data: bytes, suffix: str) -> Iterator[Document]:
    """Yield the document. A page that cannot be read is left out, like one that is a picture."""
    import pypdf
    from pypdf.errors import PyPdfError

    try:
        reader = pypdf.PdfReader(io.BytesIO(data))
        if reader.is_encrypted and not reader.decrypt(""):
            raise NoTextError("needs a password: save it without one")
        pages = len(reader.pages)
    except (PyPdfError, pypdf.errors.DependencyError) as error:
        raise NoTextError(f"is no whole PDF: {error}") from None
    sections = []
    for number in range(pages):
        with contextlib.suppress(PyPdfError, ValueError, KeyError, TypeError, AttributeError, IndexError):
            sections.append(paragraph(f"p. {number + 1}", reader.pages[number].extract_text()))
    found = filled(sections)
    if not found:
        raise NoTextError(f"has no text in its {pages} pages: they may be pictures; run OCR over it first")
    title = author = happened = None
    with contextlib.suppress(PyPdfError, ValueError, KeyError, TypeError, AttributeError):
        about = reader.metadata
        if about is not None:
            title, author, happened = about.title, about.author, about.creation_date or about.modification_date
    yield Document(found, title=line_of(title), author=line_of(author), happened=seconds_of(happened))
