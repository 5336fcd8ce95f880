"""Text to examine a model with: the public-domain books shipped with the package."""

from __future__ import annotations

import dataclasses
import lzma
import pathlib
from typing import Final

MAY_IMPORT: Final = ()

_SHIPPED = pathlib.Path(__file__).parent / "books"


@dataclasses.dataclass(frozen=True)
class Book:
    """A text and its name."""

    name: str  # "author--title", as the file is called
    text: str


def shipped_books() -> list[Book]:
    """Return the public-domain books of this package (LICENSE-books.md), in the order of their names."""
    return [
        Book(file.name.removesuffix(".txt.xz"), lzma.decompress(file.read_bytes()).decode("utf-8"))
        for file in sorted(_SHIPPED.glob("*.txt.xz"))
    ]
