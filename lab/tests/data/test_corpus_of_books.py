"""The shipped books, and a user's own corpus."""

import io
import pathlib
import tarfile
from typing import Any

import pytest
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from everlong.data import Book, shipped_books
from everlong_lab.data.books import TooFewTokensError, all_books, books_in, gather_books, make_of_enough
from everlong_lab.eval import niah, suite
from support import tiny_model


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


def test_a_corpus_is_named_as_any_path(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "some books"
    folder.mkdir()
    (folder / "a book.txt").write_text("A text.")
    ways: list[Any] = ["~/some books", "some books", str(folder), folder, str(folder).encode()]
    for named in ways:
        assert books_in(named) == [Book("a book", "A text.")]


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


def test_a_corpus_that_has_the_shipped_books_is_searched_for_others(tmp_path: pathlib.Path) -> None:
    shipped = shipped_books()
    have = sum(len(book.text) for book in shipped)
    (tmp_path / f"{shipped[0].name}.txt").write_text("word " * 10_000, encoding="utf-8")
    (tmp_path / "zoo.txt").write_text("zebra " * 10_000, encoding="utf-8")
    assert [book.name for book in gather_books(have + 50_000, tmp_path)[len(shipped) :]] == ["zoo"]


def test_books_are_added_only_where_they_come_to_too_few_tokens(tmp_path: pathlib.Path) -> None:
    """Of words here, ten characters each."""
    for number in range(8):
        (tmp_path / f"book-{number}.txt").write_text("abcdefghi " * 100, encoding="utf-8")
    own = [Book("own", "abcdefghi " * 100)]
    made: list[int] = []

    def words(wanted: int, corpus: pathlib.Path | None = tmp_path) -> list[str]:
        def make(books: list[Book]) -> list[str]:
            found = sum(len(book.text.split()) for book in books)
            made.append(found)
            if found < wanted:
                raise TooFewTokensError(found, wanted)
            return [book.name for book in books]

        made.clear()
        return make_of_enough(own, corpus, make)

    assert words(100) == ["own"]
    assert made == [100]
    assert words(250) == ["own", "book-0", "book-1"]
    assert words(900) == ["own", *(f"book-{number}" for number in range(8))]
    for wanted, corpus in ((901, tmp_path), (101, None)):
        with pytest.raises(TooFewTokensError, match=f"come to .* tokens, the haystack needs {wanted}"):
            words(wanted, corpus)


class PlannedError(Exception):
    """Ends a run once it is planned."""


def test_evaluations_open_a_corpus_for_a_tokenizer_of_long_tokens(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paragraph = "incomprehensibility notwithstanding " * 5 + "\n\n"  # 18 characters a token
    for number in range(6):
        (tmp_path / f"book-{number}.txt").write_text(paragraph * 80, encoding="utf-8")
    monkeypatch.setattr("everlong_lab.data.books.shipped_books", lambda: [Book("own", paragraph * 80)])
    words = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    model = (tiny_model(), transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>"))

    def planned(network: object, memory: object, tokens: int, *_: object) -> None:
        raise PlannedError(tokens)

    monkeypatch.setattr("everlong_lab.eval.niah.run.check_capacity", planned)
    monkeypatch.setattr(suite, "check_capacity", planned)
    with pytest.raises(PlannedError) as tokens:
        niah.run_niah(model, niah.NiahConfig(tokens=3_000, facts_per_kind=1), corpus=tmp_path)
    assert tokens.value.args[0] == pytest.approx(3_000, rel=0.02)
    config = suite.SuiteConfig(suites=("passkey",), lengths=(3_000,), count=1)
    with pytest.raises(PlannedError) as tokens:
        suite.run_suite(model, config, ("window",), out=tmp_path / "out", corpus=tmp_path)
    assert tokens.value.args[0] == pytest.approx(3_000, rel=0.02)


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
