"""Books to measure with: those that everlong ships, and any corpus of a user's own."""

from __future__ import annotations

import lzma
import pathlib
import tarfile
import zlib
from collections.abc import Callable, Iterator
from typing import TypeVar

from everlong.data import Book, shipped_books
from everlong.paths import from_home

# The shipped books come to about 295,000 tokens of SmolLM2's tokenizer; English prose has about 4 characters a token.
CHARACTERS_PER_TOKEN = 4.0

T = TypeVar("T")


class TooFewTokensError(ValueError):
    """Raised where books come to fewer tokens than are wanted."""

    def __init__(self, found: int, wanted: int) -> None:
        super().__init__(f"the books come to {found:,} tokens, the haystack needs {wanted:,}")
        self.found = found
        self.wanted = wanted


def books_in(corpus: pathlib.Path, characters: int | None = None) -> list[Book]:
    """Return the books of a corpus: a folder of .txt files, by their names, or a .tar.xz of them, in its own order.

    `characters` stops after the book that makes that many. Raises FileNotFoundError when there is no text at `corpus`.
    """
    books: list[Book] = []
    found = 0
    for book in _books_of(from_home(corpus)):
        books.append(book)
        found += len(book.text)
        if characters is not None and found >= characters:
            break
    if not books:
        raise FileNotFoundError(f"no .txt files in {corpus}")
    return books


def all_books(corpus: pathlib.Path | None = None, characters: int | None = None) -> list[Book]:
    """Return the shipped books and, behind them, those of `corpus` under other names.

    With `characters`, it takes no more of the corpus than makes that many together. Raises FileNotFoundError where the
    corpus does not exist, even if it is not needed.
    """
    books = shipped_books()
    if corpus is not None and not from_home(corpus).exists():
        raise FileNotFoundError(f"there is no corpus {corpus}")
    missing = None if characters is None else characters - sum(len(book.text) for book in books)
    if corpus is None or (missing is not None and missing <= 0):
        return books
    names = {book.name for book in books}
    return books + [book for book in books_in(corpus, missing) if book.name not in names]


def gather_books(characters: int, corpus: pathlib.Path | None = None) -> list[Book]:
    """Return the shipped books and, where they do not come to `characters`, books of `corpus`.

    Raises ValueError when both together are too short; the message says what is needed.
    """
    # What is missing may be among the corpus' own copies of the shipped books.
    books = _with_more(all_books(corpus, characters), corpus, characters)
    have = _characters(books)
    if have < characters:
        place = f"{corpus} adds too little" if corpus is not None else "name more with --corpus"
        raise ValueError(
            f"this needs about {characters / 1e6:.1f} million characters of text and there are {have / 1e6:.1f} "
            f"(books shipped with everlong included): {place}; a corpus is a folder of .txt files or a .tar.xz of them"
        )
    return books


def make_of_enough(books: list[Book], corpus: pathlib.Path | None, make: Callable[[list[Book]], T]) -> T:
    """Return what `make` makes of the books; where it raises TooFewTokensError, add books of `corpus` and try again.

    Only `make` finds out how many characters are in a token. Once the books are enough, none is added, as a draw from
    more books would be another draw. Raises what `make` does where the corpus has no more.
    """
    while True:
        try:
            return make(books)
        except TooFewTokensError as error:
            have = _characters(books)
            more = _with_more(books, corpus, max(have + 1, have * error.wanted // max(error.found, 1)))
            if len(more) == len(books):
                raise
            books = more


def _with_more(books: list[Book], corpus: pathlib.Path | None, characters: int) -> list[Book]:
    """Return the books and, behind them, others of `corpus`, until they come to `characters`."""
    have, names = _characters(books), {book.name for book in books}
    if corpus is None or have >= characters:
        return books
    more: list[Book] = []
    for book in _books_of(corpus):
        if book.name not in names:
            more.append(book)
            have += len(book.text)
            if have >= characters:
                break
    return books + more


def _characters(books: list[Book]) -> int:
    return sum(len(book.text) for book in books)


def _books_of(corpus: pathlib.Path) -> Iterator[Book]:
    return _folder_books(corpus) if corpus.is_dir() else _archive_books(corpus)


def _folder_books(folder: pathlib.Path) -> Iterator[Book]:
    for file in sorted(folder.rglob("*.txt")):
        yield Book(file.stem, file.read_text(encoding="utf-8"))


def _archive_books(archive: pathlib.Path) -> Iterator[Book]:
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                content = tar.extractfile(member) if member.isfile() and member.name.endswith(".txt") else None
                if content is not None:
                    yield Book(pathlib.PurePosixPath(member.name).stem, content.read().decode("utf-8"))
    except (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError) as error:
        raise ValueError(f"{archive} is no whole archive of books: {error}") from None
