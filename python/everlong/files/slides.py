"""PPTX, by python-pptx: a section a slide, with its notes."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Any

from everlong.files.dates import seconds_of
from everlong.files.document import Document, NoTextError, filled, line_of, paragraph


def read(data: bytes, suffix: str) -> Iterator[Document]:
    """Yield the presentation."""
    import pptx
    from pptx.exc import PackageNotFoundError

    try:
        found = pptx.Presentation(io.BytesIO(data))
    except (PackageNotFoundError, KeyError, ValueError) as error:
        raise NoTextError(f"is no whole PPTX: {error}") from None
    about = found.core_properties
    yield Document(
        filled(paragraph(f"slide {number}", _text(slide)) for number, slide in enumerate(found.slides, 1)),
        title=line_of(about.title),
        author=line_of(about.author),
        happened=seconds_of(about.created or about.modified),
    )


def _text(slide: Any) -> str:
    pieces = list(_texts_of(slide.shapes))
    if slide.has_notes_slide and slide.notes_slide.notes_text_frame is not None:
        pieces.append(slide.notes_slide.notes_text_frame.text)
    return "\n".join(pieces)


def _texts_of(shapes: Iterable[Any]) -> Iterator[str]:
    for shape in shapes:
        if hasattr(shape, "shapes"):  # a group
            yield from _texts_of(shape.shapes)
        elif getattr(shape, "has_table", False):
            yield from (" | ".join(cell.text for cell in row.cells) for row in shape.table.rows)
        elif shape.has_text_frame:
            yield shape.text_frame.text
