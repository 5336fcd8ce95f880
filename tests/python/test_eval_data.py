"""The shipped books, and a user's own corpus."""

import io
import pathlib
import tarfile

import pytest

from everlong import data
from everlong.data import Book, all_books, books_in, gather_books, shipped_books


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


def archive_of(texts: dict[str, str], path: pathlib.Path) -> pathlib.Path:
    with tarfile.open(path, "w:xz") as tar:
        for name, text in texts.items():
            info = tarfile.TarInfo(f"train/{name}")
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    return path


def test_corpus_is_a_folder_or_an_archive(tmp_path: pathlib.Path) -> None:
    texts = {"a.txt": "Über alles.", "b.txt": "Second.", "notes.md": "not a book"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    expected = [Book("a", "Über alles."), Book("b", "Second.")]
    assert books_in(tmp_path) == expected
    assert books_in(archive_of(texts, tmp_path / "books.tar.xz")) == expected
    assert books_in(tmp_path, characters=5) == expected[:1]


def test_an_empty_corpus_is_said(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no \.txt files"):
        books_in(tmp_path)
    with pytest.raises(FileNotFoundError):
        books_in(tmp_path / "missing.tar.xz")


def test_more_books_come_from_the_corpus_only_when_needed(tmp_path: pathlib.Path) -> None:
    (tmp_path / "long.txt").write_text("word " * 400_000, encoding="utf-8")
    shipped = shipped_books()
    have = sum(len(book.text) for book in shipped)
    assert gather_books(have, tmp_path) == shipped
    assert gather_books(have + 1, tmp_path)[-1].name == "long"
    with pytest.raises(ValueError, match=r"--corpus.*folder of \.txt"):
        gather_books(have + 1)
    with pytest.raises(ValueError, match="adds too little"):
        gather_books(have + 10_000_000, tmp_path)


def test_a_corpus_that_is_not_there_or_not_whole_is_said(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        all_books(tmp_path / "nowhere", 100)  # needed or not
    text = tmp_path / "book.txt"
    text.write_text("Once upon a time.")
    whole = tmp_path / "books.tar.xz"
    with tarfile.open(whole, "w:xz") as tar:
        tar.add(text, "book.txt")
    cut = tmp_path / "cut.tar.xz"
    cut.write_bytes(whole.read_bytes()[:60])
    for archive in (text, cut):
        with pytest.raises(ValueError, match="no whole archive"):
            books_in(archive)
