"""Jupyter notebooks: a section a cell, with the text that it printed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from everlong.files.document import Document, NoTextError, Section, filled, line_of, paragraph
from everlong.files.plain import decoded


def read(data: bytes, suffix: str) -> Iterator[Document]:
    """Yield the notebook."""
    try:
        found = json.loads(decoded(data))
        cells = found["cells"] if "cells" in found else found["worksheets"][0]["cells"]
        sections = [_cell(number, cell) for number, cell in enumerate(cells, 1)]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise NoTextError(f"is no notebook: {error}") from None
    about = found.get("metadata") or {}
    yield Document(filled(sections), title=line_of(about.get("title")) if isinstance(about, dict) else "")


def _cell(number: int, cell: dict[str, Any]) -> Section:
    pieces = [_joined(cell.get("source") or cell.get("input"))]
    for output in cell.get("outputs") or ():
        pieces.append(_joined(output.get("text") or (output.get("data") or {}).get("text/plain")))
    return paragraph(f"cell {number}", "\n".join(one for one in pieces if one.strip()))


def _joined(lines: Any) -> str:
    return "".join(map(str, lines)) if isinstance(lines, list) else str(lines or "")
