"""Texts with the places where a topic ends: what the trigger learns from, and what it is measured on.

Dialogues are those of TIAGE (data/qa): each turn says whether the topic shifts with it. Books give splices, which are
pieces of several books joined where a paragraph ends. The next piece is of another author, or of another book by the
same one, which is harder to see. The ends of a piece's own paragraphs are no splices. Books are also read as they are:
chapters begin there.
"""

from __future__ import annotations

import dataclasses
import hashlib
import pathlib
import re
from collections.abc import Sequence
from typing import Literal

import numpy as np

from everlong.data import Book, shipped_books
from everlong_lab.corpora.blocks import EDGE
from everlong_lab.corpora.pairs import Split
from everlong_lab.corpora.seeds import draws
from everlong_lab.data.qa import qa_dialogues

# What begins behind a place, weakest first. "splice" is a piece of another author's book, "author" one of another book
# by the same author.
CutKind = Literal["paragraph", "turn", "chapter", "shift", "author", "splice"]
TOPICS: tuple[CutKind, ...] = ("chapter", "shift", "author", "splice")
Origin = Literal["dialogue", "splice", "book"]

_FIT_SHARE = 0.12  # of dialogues and of authors: for early stopping, and to calibrate thresholds for lengths
_PIECE_CHARACTERS = (1500, 4000)
_PIECES = 6  # in a splice
_SAME_AUTHOR = 0.4  # share of the joints of a splice, where the author has another book
_BOOK_CHARACTERS = 14_000  # length of a book that is read as it is
_PLAIN_TEXTS = 8  # texts to calibrate thresholds on

_HEADING = re.compile(
    r"\s*(chapter|book|part|canto|act|scene|letter|stave|volume|section)\s+([ivxlcd]+|\d+|the \w+)\b.{0,60}"
    r"|\s*[IVXLC]+\.?\s*",
    re.IGNORECASE | re.DOTALL,
)


@dataclasses.dataclass(frozen=True)
class Cut:
    at: int  # characters of the text before it
    kind: CutKind


@dataclasses.dataclass(frozen=True)
class CutText:
    """A text to read as one, with all its places where a block might end, in order."""

    name: str
    text: str
    cuts: tuple[Cut, ...]
    origin: Origin
    split: Split
    sources: tuple[str, ...]  # names of the books, or of the set, that it is from


def trigger_texts(books: Sequence[Book], *, splices: int, with_dialogues: bool = True, seed: int = 0) -> list[CutText]:
    """Return all texts that the trigger is trained, stopped and calibrated on. Raises ValueError for too few books."""
    own = dialogues("train") if with_dialogues else []
    return [*own, *joined(books, splices, seed=seed), *plain(books, _PLAIN_TEXTS, seed=seed + 1)]


def books_of(files: Sequence[pathlib.Path]) -> list[Book]:
    """Return the books in these files, author--title.txt; without files, the shipped books."""
    if not files:
        return shipped_books()
    return [Book(file.stem, file.read_text("utf-8", errors="replace")) for file in files]


def dialogues(part: Literal["train", "dev"]) -> list[CutText]:
    """Return TIAGE's dialogues, one line a turn. A share of its train part is for fitting; its dev part is test."""
    texts = []
    for name, turns in qa_dialogues(f"tiage-{part}"):
        text, cuts = "", []
        for words, shifts in turns:
            if text:
                cuts.append(Cut(len(text), "shift" if shifts else "turn"))
            text += words + "\n"
        split: Split = "test" if part == "dev" else _split_of(f"tiage {name}")
        texts.append(CutText(f"tiage {name}", text, tuple(cuts), "dialogue", split, ("tiage",)))
    return texts


def joined(books: Sequence[Book], count: int, *, seed: int, split: Split | None = None) -> list[CutText]:
    """Return `count` texts joined from pieces of these books, with no author in two splits.

    `split` puts all of them in one split. Raises ValueError where there are fewer than two authors to join.
    """
    random = draws(seed, "joined")
    groups = _by_split(books, split)
    if any(len({author_of(book) for book in own}) < 2 for own in groups.values()):
        raise ValueError("splices need books of two authors or more, in files named author--title.txt")
    held_out = round(_FIT_SHARE * count) if "fit" in groups else 0
    texts = []
    for number in range(count):
        named: Split = split or ("fit" if number < held_out else "train")
        texts.append(_splice(groups[named], f"splice {number}", named, random))
    return texts


def plain(books: Sequence[Book], count: int, *, seed: int, split: Split | None = None) -> list[CutText]:
    """Return `count` runs of single books as they are: of held-out books, or of any where `split` names a split."""
    random = draws(seed, "plain")
    groups = _by_split(books, split)
    own = groups.get(split or "fit", list(books))
    order = [own[at] for at in random.permutation(len(own))]
    texts: list[CutText] = []
    for number in range(count if own else 0):
        book = order[number % len(order)]
        text, cuts = _with_cuts(_run(_paragraphs(book), _BOOK_CHARACTERS, random))
        texts.append(CutText(f"{book.name} {number}", text, tuple(cuts), "book", split or "fit", (book.name,)))
    return texts


def author_of(book: Book) -> str:
    return book.name.partition("--")[0]


def _by_split(books: Sequence[Book], split: Split | None) -> dict[Split, list[Book]]:
    """Return the books by split. At least two authors are held out, where as many are left."""
    if split is not None:
        return {split: list(books)}
    authors = sorted({author_of(book) for book in books}, key=_place_of)
    count = max(2, sum(_split_of(author) == "fit" for author in authors))
    held_out = set(authors[:count]) if len(authors) >= count + 2 else set()
    fit = [book for book in books if author_of(book) in held_out]
    train = [book for book in books if author_of(book) not in held_out]
    return {"fit": fit, "train": train} if fit else {"train": train}


def _split_of(name: str) -> Split:
    return "fit" if _place_of(name) < _FIT_SHARE else "train"


def _place_of(name: str) -> float:
    """Return a number from 0 to 1 that depends on the name alone, as if drawn."""
    return int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) / 2**32


def _splice(books: Sequence[Book], name: str, split: Split, random: np.random.Generator) -> CutText:
    text, cuts, sources = "", list[Cut](), list[str]()
    before: Book | None = None
    for _ in range(_PIECES):
        own = [b for b in books if before and b is not before and author_of(b) == author_of(before)]
        others = [b for b in books if before is None or author_of(b) != author_of(before)]
        same = bool(own) and (random.random() < _SAME_AUTHOR or not others)
        pool = own if same else (others or [b for b in books if b is not before])
        book = pool[int(random.integers(len(pool)))]
        most = int(random.integers(*_PIECE_CHARACTERS))
        piece, inner = _with_cuts(_run(_paragraphs(book), most, random))
        if text:
            cuts.append(Cut(len(text), "author" if same else "splice"))
        cuts.extend(Cut(len(text) + cut.at, cut.kind) for cut in inner)
        text += piece
        sources.append(book.name)
        before = book
    return CutText(name, text, tuple(cuts), "splice", split, tuple(sources))


def _paragraphs(book: Book) -> list[str]:
    inner = book.text[int(len(book.text) * EDGE) : int(len(book.text) * (1 - EDGE))]
    return [paragraph for paragraph in re.split(r"\n\s*\n", inner) if paragraph.strip()][1:-1]


def _run(paragraphs: Sequence[str], characters: int, random: np.random.Generator) -> Sequence[str]:
    """Return consecutive paragraphs of about `characters` characters."""
    lengths = np.cumsum([len(paragraph) + 2 for paragraph in paragraphs])
    latest = int(np.searchsorted(lengths, max(0, lengths[-1] - characters)))
    first = int(random.integers(latest + 1))
    begin = lengths[first - 1] if first else 0
    last = int(np.searchsorted(lengths, begin + characters))
    return paragraphs[first : max(last, first + 1)]


def _with_cuts(paragraphs: Sequence[str]) -> tuple[str, list[Cut]]:
    """Return the text, and the places between its paragraphs. A heading belongs to what follows it."""
    text, cuts = "", list[Cut]()
    headed = False
    for paragraph in paragraphs:
        heading = len(paragraph) < 80 and _HEADING.fullmatch(paragraph) is not None
        if text and not headed:
            cuts.append(Cut(len(text), "chapter" if heading else "paragraph"))
        text += paragraph.rstrip() + "\n\n"
        headed = heading
    return text, cuts
