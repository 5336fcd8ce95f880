"""What the encoder learns from: questions, the passages that answer them, and passages that do not.

A short passage stands in the middle of foreign text as often as alone, because a page is seldom about one thing. A
longer one is often met by the page around its answer alone. Wrong passages are other sections of the story, those that
have most of the question's words (BM25), and pages of books: some at random, some by their words.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from everlong_lab.corpora.pairs import Pairs

LONGEST = 256  # word pieces of a passage
_FOREIGN = 32  # word pieces of foreign text on a side of a short one, at most
_ALONE = 150  # a longer passage is cut before foreign text is put around it
_STORIES, _OF_STORY, _OTHERS = 5, 3, 3  # of a lesson: stories, questions to each, and other sections of each
_PASSAGES = {"squad": 14, "natural": 8}  # questions of a lesson that have one passage each, by their set
_WRONG = 8  # passages that are kept for a question: those with most of its words
_PAGE = 64  # word pieces of a page of a book
_BOOK_PAGES = 32  # pages of books in a lesson; half of them have most of a question's words

Rows = list[list[int]]
Place = tuple[int, int]  # of a passage: its text and its piece


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Pairs, as word pieces."""

    pairs: Pairs
    passages: list[Rows]  # by text and piece
    questions: Rows
    answers: Rows  # of each question; none where it is not known
    foreign: Rows  # long texts that answer nothing

    def of_text(self, text: int) -> str:
        return self.pairs.texts[text].origin


@dataclasses.dataclass(frozen=True)
class Batch:
    """A lesson: questions, passages, and which passage is right for which question."""

    questions: Rows
    passages: Rows
    right: npt.NDArray[np.bool_]  # [questions, passages]


class Lessons:
    """Draws lessons from what is trained on."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        pairs = corpus.pairs
        by_story: dict[int, list[int]] = collections.defaultdict(list)
        self._of_set: dict[str, list[int]] = {name: [] for name in _PASSAGES}
        for at in pairs.of_split("train"):
            text = pairs.questions[at].text
            if corpus.of_text(text) in _PASSAGES:
                self._of_set[corpus.of_text(text)].append(at)
            else:
                by_story[text].append(at)
        self._stories = sorted(by_story.items())
        sizes = np.asarray([len(asked) for _, asked in self._stories], dtype=np.float64)
        self._chances = sizes / max(1.0, sizes.sum())
        self._wrong = {at: wrong for asked in self._of_set.values() for at, wrong in self._most_alike(asked).items()}
        self._pages = [
            (book, first)
            for book, text in enumerate(corpus.foreign)
            for first in range(0, len(text) - _PAGE + 1, _PAGE)
        ]
        self._words_of_pages = Words([corpus.foreign[book][first : first + _PAGE] for book, first in self._pages])

    def _most_alike(self, questions: Sequence[int]) -> dict[int, list[int]]:
        """Return, for each question, the texts of its set with most of its words; the first is often right, too."""
        pairs = self._corpus.pairs
        texts = sorted({pairs.questions[at].text for at in questions})
        if not texts:
            return {}
        words = Words([self._corpus.passages[text][0] for text in texts])
        place = {text: at for at, text in enumerate(texts)}
        found: dict[int, list[int]] = {}
        for first in range(0, len(questions), 500):
            some = questions[first : first + 500]
            scores = words.scores([self._corpus.questions[at] for at in some])
            for row, at in enumerate(some):
                scores[row, place[pairs.questions[at].text]] = -1
                found[at] = [texts[best] for best in np.argsort(-scores[row], kind="stable")[1 : _WRONG + 1]]
        return found

    def drawn(self, random: np.random.Generator) -> Batch:
        pairs, corpus = self._corpus.pairs, self._corpus
        asked: list[int] = []
        golds: list[Place] = []
        wrong: list[Place] = []
        count = min(_STORIES, len(self._stories))
        for story in random.choice(len(self._stories), count, replace=False, p=self._chances) if count else []:
            text, of_story = self._stories[story]
            right = set()
            for at in random.choice(of_story, min(_OF_STORY, len(of_story)), replace=False).tolist():
                piece = int(random.choice(pairs.questions[at].pieces))
                asked.append(at)
                golds.append((text, piece))
                right.add(piece)
            others = [piece for piece in range(len(corpus.passages[text])) if piece not in right]
            wrong += [(text, int(piece)) for piece in random.permutation(others)[:_OTHERS]]
        for name, many in _PASSAGES.items():
            of_set = self._of_set[name]
            for at in random.choice(of_set, min(many, len(of_set)), replace=False).tolist() if of_set else []:
                asked.append(at)
                golds.append((pairs.questions[at].text, 0))
                if self._wrong[at]:
                    wrong.append((int(random.choice(self._wrong[at])), 0))
        places = list(dict.fromkeys([*golds, *wrong]))
        around = random.random() < 0.7
        answer = {gold: corpus.answers[at] for at, gold in zip(asked, golds, strict=True)}
        cut = [self._surrounded(place, answer.get(place, []), random, around=around) for place in places]
        pages = self._of_books(asked, random)
        known = right_places(pairs, asked, places)
        return Batch(
            [_dropped(corpus.questions[at], random) for at in asked],
            [*cut, *pages],
            np.hstack([known, np.zeros((len(asked), len(pages)), dtype=np.bool_)]),
        )

    def _of_books(self, questions: Sequence[int], random: np.random.Generator) -> Rows:
        """Return pages of books."""
        if not self._pages or not questions:
            return []
        some = random.choice(questions, min(_BOOK_PAGES // 2, len(questions)), replace=False).tolist()
        scores = self._words_of_pages.scores([self._corpus.questions[at] for at in some])
        most = min(_WRONG, len(self._pages))
        alike = np.argpartition(-scores, most - 1, axis=1)[:, :most]
        drawn = {int(random.choice(row)) for row in alike}
        drawn |= set(random.choice(len(self._pages), _BOOK_PAGES // 2).tolist())
        return [
            self._corpus.foreign[book][first : first + _PAGE]
            for book, first in (self._pages[at] for at in sorted(drawn))
        ]

    def _surrounded(
        self, place: Place, answer: Sequence[int], random: np.random.Generator, *, around: bool
    ) -> list[int]:
        """Return a passage, the page around its answer, or the passage in foreign text."""
        text, piece = place
        row = list(self._corpus.passages[text][piece])
        if len(self._corpus.passages[text]) > 1:
            return _cut(row, LONGEST, random)
        at = _place_of(answer, row)
        if at is not None and len(row) > _PAGE and random.random() < 0.5:
            first = int(random.integers(max(0, min(at, at + len(answer) - _PAGE)), at + 1))
            return row[first : first + _PAGE]
        if around and random.random() < 0.7:
            left, right = (int(random.integers(0, _FOREIGN + 1)) for _ in range(2))
            return [*self._foreign(left, random), *_cut(row, _ALONE, random), *self._foreign(right, random)]
        return _cut(row, LONGEST, random)

    def _foreign(self, pieces: int, random: np.random.Generator) -> list[int]:
        if pieces == 0 or not self._corpus.foreign:
            return []
        text = self._corpus.foreign[int(random.integers(len(self._corpus.foreign)))]
        first = int(random.integers(max(1, len(text) - pieces)))
        return text[first : first + pieces]


def right_places(pairs: Pairs, questions: Sequence[int], places: Sequence[Place]) -> npt.NDArray[np.bool_]:
    """Return [questions, places]: which place answers which question."""
    column = {place: at for at, place in enumerate(places)}
    right = np.zeros((len(questions), len(places)), dtype=np.bool_)
    for row, at in enumerate(questions):
        for piece in pairs.questions[at].pieces:
            if (found := column.get((pairs.questions[at].text, piece))) is not None:
                right[row, found] = True
    return right


def _cut(row: list[int], most: int, random: np.random.Generator) -> list[int]:
    """Return at most `most` word pieces of a row, from a random place on."""
    first = int(random.integers(max(0, len(row) - most) + 1))
    return row[first : first + most]


def _place_of(some: Sequence[int], row: Sequence[int]) -> int | None:
    """Return where `some` begins in a row; None where it is empty or not there."""
    runs = (at for at in range(len(row) - len(some) + 1) if some and list(row[at : at + len(some)]) == list(some))
    return next(runs, None)


def _dropped(row: list[int], random: np.random.Generator) -> list[int]:
    """Return a question without some of its word pieces: a missing word must not matter."""
    return [one for one in row if random.random() > 0.08] or row


class Words:
    """BM25 (k1 = 1.2, b = 0.75) over passages of word pieces, each distinct piece of a question counting once."""

    def __init__(self, passages: Sequence[Sequence[int]]) -> None:
        postings: dict[int, list[tuple[int, float]]] = collections.defaultdict(list)
        self._count = len(passages)
        mean = sum(map(len, passages)) / max(1, len(passages))
        for at, row in enumerate(passages):
            for piece, often in collections.Counter(row).items():
                postings[piece].append((at, often * 2.2 / (often + 1.2 * (0.25 + 0.75 * len(row) / mean))))
        self._by_piece = {piece: self._weighed(of_piece) for piece, of_piece in postings.items()}

    def _weighed(self, postings: list[tuple[int, float]]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Return the passages that have a piece, and what it adds to the score of each."""
        rare = np.log(1 + (self._count - len(postings) + 0.5) / (len(postings) + 0.5))
        at, grown = zip(*postings, strict=True)
        return np.asarray(at, dtype=np.int64), np.asarray(rare * np.asarray(grown), dtype=np.float32)

    def scores(self, questions: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
        """Return [questions, passages]."""
        found = np.zeros((len(questions), self._count), dtype=np.float32)
        for row, question in enumerate(questions):
            for piece in set(question):
                if piece in self._by_piece:
                    at, weight = self._by_piece[piece]
                    found[row, at] += weight
        return found
