"""Texts to read."""

from __future__ import annotations

import torch

from everlong.data import Book, shipped_books


def random_text(count: int, seed: int = 1) -> str:
    """Return `count` random letters from a to z. The same seed gives the same text."""
    generator = torch.Generator().manual_seed(seed)
    letters = torch.randint(97, 123, (count,), generator=generator).tolist()
    return "".join(map(chr, letters))


def random_words(count: int, seed: int = 1) -> str:
    """Return `count` characters of random words of two to seven letters. The same seed gives the same text."""
    letters, words = iter(random_text(2 * count, seed)), ""
    while len(words) < count:
        length = 2 + ord(next(letters)) % 6
        words += "".join(next(letters) for _ in range(length)) + " "
    return words[:count]


def paragraph_books(number: int = 3, paragraphs: int = 40) -> list[Book]:
    """Make books whose paragraphs are all alike, but for their number and the book's."""
    return [
        Book(f"book-{n}", "\n\n".join(f"Paragraph {p} of book {n}. " + "It goes on. " * 12 for p in range(paragraphs)))
        for n in range(number)
    ]


def books_with_headings() -> list[Book]:
    """Make two books each of five authors. Each book has a heading of a chapter in its middle."""

    def book(author: str, title: str, word: str) -> Book:
        paragraphs = [f"{word} {n} goes on and on, and so does this sentence of it." for n in range(120)]
        paragraphs[60:60] = ["CHAPTER VII", "The heading's own title"]
        return Book(f"{author}--{title}", "\n\n".join(paragraphs))

    return [book(a, t, f"{a}{t}") for a in ("ann", "ben", "cid", "dot", "eve") for t in ("one", "two")]


def starts_of_books() -> list[Book]:
    """Return the books that the package ships, each cut to its first 60,000 characters."""
    return [Book(book.name, book.text[:60_000]) for book in shipped_books()]
