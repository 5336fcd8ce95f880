"""The shipped books, and a user's own corpus."""

import pathlib

from everlong import data
from everlong.data import shipped_books


def test_shipped_books_are_whole_and_licensed() -> None:
    books = shipped_books()
    assert len(books) >= 5
    assert len({book.name.split("--")[0] for book in books}) >= 5, "several authors"
    assert sum(len(book.text) for book in books) > 1_000_000
    folder = pathlib.Path(data.__file__).parent
    licence = (folder / "LICENSE-books.md").read_text(encoding="utf-8")
    for book in books:
        assert f"`{book.name}`" in licence
        assert len(book.text) > 100_000
        assert "\r" not in book.text
        assert "gutenberg" not in book.text.lower()
        assert "@" not in book.text
    assert sum(file.stat().st_size for file in (folder / "books").iterdir()) < 700_000
