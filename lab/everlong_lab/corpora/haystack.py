"""A haystack: books joined to a length in tokens, with facts planted between their paragraphs.

Positions are tokens of the stream that the parts give when they are read one after the other into an empty memory. So a
planted fact's span can be compared with the spans that a memory recalls.
"""

from __future__ import annotations

import bisect
import dataclasses
import re
from collections.abc import Sequence
from typing import Any, Generic, Protocol

import numpy as np
import numpy.typing as npt
from typing_extensions import TypeVar

from everlong.data import Book
from everlong.text.encoding import encode_with_places
from everlong.text.prompt import start_ids
from everlong_lab.corpora.facts import Fact
from everlong_lab.corpora.seeds import picks
from everlong_lab.data.books import TooFewTokensError

GOLD_TOKENS = 512  # tokens of the text around an answer
_PARAGRAPH_END = re.compile(r"\n\n+")
_SENTENCE_END = re.compile(r"[.!?][\"'”’)]?\s+")
# A paragraph longer than this may be split at a sentence's end.
_LONG_PARAGRAPH = 2_000


class Statement(Protocol):
    """Something that a sentence or two can be planted for."""

    @property
    def statement(self) -> str: ...  # a paragraph of its own


F = TypeVar("F", bound=Statement, default=Fact)


@dataclasses.dataclass(frozen=True)
class HaystackPiece:
    """A piece of one book, read in one go."""

    source: str
    text: str
    begin: int  # tokens of the stream before it
    end: int
    offsets: npt.NDArray[np.int32] = dataclasses.field(compare=False, repr=False)  # [tokens, 2] characters of each

    def between(self, begin: int, end: int) -> str:
        """Return the text of the haystack's tokens [begin, end), which lie in this part."""
        return self.text[int(self.offsets[begin - self.begin, 0]) : int(self.offsets[end - self.begin - 1, 1])]

    def around(self, begin: int, end: int, tokens: int) -> str:
        """Return about `tokens` tokens of text with the haystack's span [begin, end) in their middle."""
        first = max(self.begin, min((begin + end) // 2 - tokens // 2, self.end - tokens))
        return self.between(first, min(self.end, first + tokens))


@dataclasses.dataclass(frozen=True)
class Needle(Generic[F]):
    """A fact and the tokens [begin, end) of the haystack that state it."""

    fact: F
    begin: int
    end: int
    part: int  # index into Haystack.parts

    def depth(self, tokens: int) -> float:
        """Return where it stands in the first `tokens` tokens: 0 at their beginning, 1 at their end."""
        return self.begin / tokens


@dataclasses.dataclass(frozen=True)
class Haystack(Generic[F]):
    parts: tuple[HaystackPiece, ...]
    needles: tuple[Needle[F], ...]  # in the order in which they stand
    checkpoints: tuple[int, ...]  # for each wanted length, the number of parts that make it up

    @property
    def tokens(self) -> int:
        return self.parts[-1].end

    def gold_passage(self, needle: Needle[F], tokens: int = GOLD_TOKENS) -> str:
        """Return the text around a needle, which is all that a model needs to answer."""
        return self.parts[needle.part].around(needle.begin, needle.end, tokens)


@dataclasses.dataclass(frozen=True)
class _Seam:
    """A place where something may be put between two paragraphs or sentences."""

    book: int
    character: int
    token: int  # tokens of all books before it
    inside_paragraph: bool


def build_haystack(
    books: Sequence[Book],
    tokenizer: Any,
    lengths: Sequence[int],
    facts: Sequence[F],
    positions: Sequence[int],
    seed: int = 0,
) -> Haystack[F]:
    """Join books to `lengths[-1]` tokens, in an order drawn from `seed`, and plant `facts[i]` near token
    `positions[i]`.

    A fact stands in a paragraph of its own at the seam nearest to its position. A seam is a paragraph's end, or a
    sentence's end in a long paragraph. Parts end where a book ends, and at the seams nearest to the ascending
    `lengths`. The tokenizer must be a fast one, as it has to give offsets. Raises TooFewTokensError where the books are
    too short, and ValueError for positions outside.
    """
    if list(lengths) != sorted(set(lengths)) or not lengths or lengths[0] <= 0:
        raise ValueError(f"lengths {list(lengths)} are not ascending")
    if len(facts) != len(positions):
        raise ValueError(f"{len(facts)} facts for {len(positions)} positions")
    if any(not 0 <= position < lengths[-1] for position in positions):
        raise ValueError(f"a position lies outside the haystack of {lengths[-1]:,} tokens")
    order = picks(seed, "books").sample(list(books), len(books))
    statement_tokens = [len(token_offsets(tokenizer, f"\n\n{fact.statement}")) for fact in facts]
    seams = _seams(order, tokenizer, lengths[-1] - sum(statement_tokens))
    seam_tokens = [seam.token for seam in seams]

    planted: dict[int, list[F]] = {}
    cuts: list[int] = []
    added = seam = 0
    # Facts count as tokens of the haystack, so earlier facts move everything behind them.
    targets = [(position, 0, index) for index, position in enumerate(positions)]
    targets += [(length, 1, index) for index, length in enumerate(lengths)]
    for target, is_cut, index in sorted(targets):
        # Facts that stand close take room from each other: a later one must not go before an earlier one.
        seam = max(seam, _nearest(seam_tokens, target - added))
        if is_cut:
            cuts.append(seam)
        else:
            planted.setdefault(seam, []).append(facts[index])
            added += statement_tokens[index]
    return _assemble(order, tokenizer, seams, planted, cuts)


def token_offsets(tokenizer: Any, text: str) -> npt.NDArray[np.int32]:
    """Return [tokens, 2]: the first character of every token, and the one behind its last."""
    return encode_with_places(tokenizer, text)[:, 1:].copy()


def _seams(books: Sequence[Book], tokenizer: Any, tokens: int) -> list[_Seam]:
    """Return every seam of the books that make `tokens` tokens, ascending, and the end of the last book."""
    seams: list[_Seam] = []
    before = 0
    for number, book in enumerate(books):
        starts = token_offsets(tokenizer, book.text)[:, 0]
        for character, inside in _breaks(book.text):
            seams.append(_Seam(number, character, before + int(np.searchsorted(starts, character)), inside))
        before += len(starts)
        seams.append(_Seam(number, len(book.text.rstrip()), before, False))
        if before >= tokens:
            return seams
    raise TooFewTokensError(before, tokens)


def _breaks(text: str) -> list[tuple[int, bool]]:
    """Return (character, whether it lies inside a paragraph) of every place where a paragraph can be put."""
    breaks = []
    first = 0
    for end in [match.start() for match in _PARAGRAPH_END.finditer(text)] + [len(text)]:
        if end - first > _LONG_PARAGRAPH:
            breaks += [(match.end(), True) for match in _SENTENCE_END.finditer(text, first, end) if match.end() < end]
        if end < len(text):
            breaks.append((end, False))
        first = end
    return breaks


def _nearest(ascending: Sequence[int], value: int) -> int:
    right = min(bisect.bisect_left(ascending, value), len(ascending) - 1)
    if right > 0 and value - ascending[right - 1] <= ascending[right] - value:
        return right - 1
    return right


def _assemble(
    books: Sequence[Book], tokenizer: Any, seams: Sequence[_Seam], planted: dict[int, list[F]], cuts: Sequence[int]
) -> Haystack[F]:
    parts: list[HaystackPiece] = []
    needles: list[Needle[F]] = []
    checkpoints: list[int] = []
    pieces: list[str] = []
    stated: list[tuple[F, int, int]] = []  # fact, and its characters in the part that is being built
    length = 0
    read_to = (0, 0)  # book, character

    def add(text: str) -> None:
        nonlocal length
        pieces.append(text)
        length += len(text)

    def close(book: int) -> None:
        nonlocal length
        text = "".join(pieces)
        begin = parts[-1].end if parts else len(start_ids(tokenizer))
        if text.strip():
            offsets = token_offsets(tokenizer, text)
            for fact, first, last in stated:
                inside = np.flatnonzero((offsets[:, 0] < last) & (offsets[:, 1] > first))
                needles.append(Needle(fact, begin + int(inside[0]), begin + int(inside[-1]) + 1, len(parts)))
            parts.append(HaystackPiece(books[book].name, text, begin, begin + len(offsets), offsets))
        pieces.clear()
        stated.clear()
        length = 0

    ends = set(cuts)
    for number in range(max(cuts) + 1):
        seam = seams[number]
        book_ends = number + 1 == len(seams) or seams[number + 1].book != seam.book
        if number not in planted and number not in ends and not book_ends:
            continue
        first = read_to[1] if read_to[0] == seam.book else 0
        add(books[seam.book].text[first : seam.character])
        for fact in planted.get(number, []):
            add("\n\n")
            stated.append((fact, length, length + len(fact.statement)))
            add(fact.statement)
        if number in planted and seam.inside_paragraph:
            add("\n\n")
        read_to = (seam.book, seam.character)
        if book_ends:
            add("\n\n")
        if number in ends or book_ends:
            close(seam.book)
        checkpoints += [len(parts)] * cuts.count(number)
    return Haystack(tuple(parts), tuple(needles), tuple(checkpoints))
