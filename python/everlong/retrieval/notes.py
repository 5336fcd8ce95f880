"""The lines of all text that tell of a question, and how often words occur: what a survey answers from.

A search brings back the few pages that are most alike. Questions over everything (how many, all of which, the most
frequent, the latest) need every place. So each line of the text is looked at, in words alone. A line is noted where it
has most of what the question names. Then lines are noted that have a name or number of a noted line, and so on: what is
told in steps, such as "A is B" and "B is C", comes together.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import everlong._core as _core
from everlong.errors import MemoryNotFoundError
from everlong.memory.where import Where
from everlong.text.encoding import count_decoded_characters, decode_text, encode, token_at
from everlong.text.sentences import sentences
from everlong.text.words import words_apart

_NEAR = 0.6  # of the best line's share of the question
_SPECIFIC = 3.0  # what a number, a name or quoted words of the question count beside other words
_OTHER_LINES = 20_000  # lines of any text, beside which a word of the question is rare or not
_WORDS_A_LINE = 12
_ZIPF = 0.1  # share of the most frequent word; that of rank r is _ZIPF / r
_BYTES = 256  # a vocabulary begins with these, then goes on by frequency
_HOPS = 8  # times that lines are noted for what noted lines name
_RARE = 8  # a name that more lines have leads to no further lines
_RUN = 8192  # tokens that are looked at together
_NAMED = 4  # tokens around the name of a source, at most
_LONGEST = 400  # characters of a line; a longer sentence is several

_NUMBER = re.compile(r"\d[\d.,:/-]*\d|\d")
_NAME = re.compile(r"\b[^\W\d_a-z]{2,}\b|(?<=[\w,;:] )[^\W\d_a-z]\w+")  # in capitals, or with one behind a word
_QUOTED = re.compile(r"[\"\u201c\u201e\u00ab]([^\"\u201c\u201d\u00bb]+)[\"\u201d\u201c\u00bb]")


@dataclasses.dataclass(frozen=True)
class Note:
    """A line of a stream that tells of the question."""

    stream: int
    begin: int  # tokens [begin, end)
    end: int
    text: str
    share: float  # of the question's words, each by its weight; 0 for a line that a noted one led to
    source: str


@dataclasses.dataclass(frozen=True)
class Notes:
    """What was noted, in the text's order."""

    lines: tuple[Note, ...]
    counts: tuple[tuple[str, int], ...]  # words of all lines that were looked at, the most frequent first


@dataclasses.dataclass(frozen=True)
class _Run:
    """Pages of one source that follow each other."""

    source: str
    stream: int
    begin: int
    ids: list[int]
    text: str


@dataclasses.dataclass(frozen=True)
class _Line:
    run: int
    first: int  # characters of the run's text
    last: int


def take_notes(
    core: _core.Memory,
    tokenizer: Any,
    question: str,
    where: Where,
    stream: int,
    most_tokens: int,
    looked_at: Callable[[int, int], None] = lambda tokens, total: None,
) -> Notes:
    """Look at each line of the stream that passes `where`, and note at most so many tokens of lines.

    Where there are several sources, their names count, too.

    `looked_at` is called with the tokens looked at since the last call, and those in all.
    """
    runs: list[_Run] = []
    lines: list[_Line] = []
    having: dict[str, list[int]] = {}  # by word: numbers of lines, ascending
    counts: collections.Counter[str] = collections.Counter()
    for run in _runs(core, tokenizer, where, stream, looked_at):
        for first, last in _lines(run.text):
            words = words_apart(run.text[first:last])
            counts.update(words)
            for word in set(words):
                having.setdefault(word, []).append(len(lines))
            lines.append(_Line(len(runs), first, last))
        runs.append(run)
    said = functools.cache(lambda run: count_decoded_characters(tokenizer, runs[run].ids, runs[run].text))
    noted, left = [], most_tokens
    several = len({one.source for one in runs}) > 1
    named: set[int] = set()  # runs whose source's name stands above a noted line
    for at, share in _ranked(tokenizer, question, lines, runs, having):
        number = lines[at].run
        note = _note(runs[number], lines[at], share, said(number))
        left -= note.end - note.begin
        if several and number not in named:
            left -= len(encode(tokenizer, note.source)) + _NAMED
            named.add(number)
        if left < 0:
            break
        noted.append(note)
    noted.sort(key=lambda note: note.begin)
    return Notes(tuple(noted), tuple(counts.most_common()))


def _lines(text: str) -> Iterator[tuple[int, int]]:
    """Yield where sentences and turns begin and end, and parts of long ones, cut between words where they have any."""
    for first, last in sentences(text):
        while last - first > _LONGEST:
            cut = text.rfind(" ", first + _LONGEST // 2, first + _LONGEST)
            cut = first + _LONGEST if cut < 0 else cut
            yield first, cut
            first = cut + (text[cut] == " ")
        yield first, last


def _runs(
    core: _core.Memory, tokenizer: Any, where: Where, stream: int, looked_at: Callable[[int, int], None]
) -> Iterator[_Run]:
    """Yield the text, oldest first. What is forgotten meanwhile is left out."""
    pages = core.search.recent_pages(stream, core.blocks.stream_end(stream), (1 << 31) - 1, **where.core())
    total = sum(page.end - page.begin for page in pages)
    for source, together in _neighbours(core, pages):
        begin, end = together[0].begin, together[-1].end
        try:
            ids = core.blocks.token_ids(stream, begin, end).tolist()
        except MemoryNotFoundError:
            continue
        yield _Run(source, stream, begin, ids, decode_text(tokenizer, ids))
        looked_at(len(ids), total)


def _neighbours(core: _core.Memory, pages: Sequence[_core.PageRef]) -> Iterator[tuple[str, list[_core.PageRef]]]:
    """Yield a source and pages of it that follow each other, up to some tokens at a time. They begin with a block."""
    together: list[_core.PageRef] = []
    source = ""
    for page in sorted(pages, key=lambda page: page.begin):
        new = not together or page.block != together[-1].block
        try:
            of_page = core.blocks.info(page.block).source if new else source
        except MemoryNotFoundError:
            continue
        if together and new:
            full = page.end - together[0].begin > _RUN
            if full or page.begin != together[-1].end or of_page != source:
                yield source, together
                together = []
        together.append(page)
        source = of_page
    if together:
        yield source, together


def _ranked(
    tokenizer: Any, question: str, lines: Sequence[_Line], runs: Sequence[_Run], having: Mapping[str, Sequence[int]]
) -> list[tuple[int, float]]:
    """Return lines that tell of the question, best first, then those that they lead to, each with its share."""
    weights = _weights(tokenizer, question, having, len(lines))
    whole = sum(weights.values())
    shares: collections.defaultdict[int, float] = collections.defaultdict(float)
    for word, weight in weights.items():
        for at in having[word]:
            shares[at] += weight / whole
    best = max(shares.values(), default=0.0)
    found = [(at, share) for at, share in shares.items() if share >= _NEAR * best]
    found.sort(key=lambda one: (-one[1], one[0]))
    there = {at for at, _ in found}
    asked = set(words_apart(question))
    newest = [at for at, _ in found]
    for _ in range(_HOPS):
        names = {word for at in newest for name in _named(_text(lines[at], runs)) for word in words_apart(name)} - asked
        asked |= names
        led = [having.get(name, ()) for name in names]  # a number within a word is none
        newest = sorted({at for having_it in led if len(having_it) <= _RARE for at in having_it} - there)
        there.update(newest)
        found += [(at, 0.0) for at in newest]
    return found


def _weights(tokenizer: Any, question: str, having: Mapping[str, Sequence[int]], lines: int) -> dict[str, float]:
    """Return what each word of the question that any line has counts: more where fewer lines have it.

    A short text alone does not know which words are common, so that lines of other text stand beside its own. Squares
    let one rare word count more than two common ones.
    """
    special = {word for name in _named(question) for word in words_apart(name)}
    weights = {}
    for word in set(words_apart(question)) & having.keys():
        others = _OTHER_LINES * min(1.0, _WORDS_A_LINE * _frequency(tokenizer, word))
        rarity = math.log1p((lines + _OTHER_LINES) / (len(having[word]) + others))
        weights[word] = (_SPECIFIC if word in special else 1.0) * rarity**2
    return weights


def _frequency(tokenizer: Any, word: str) -> float:
    """Return a word's share of all words, roughly: a vocabulary is ordered by frequency, which Zipf's law tells."""
    ids: list[int] = encode(tokenizer, " " + word).tolist()
    return math.prod(_ZIPF / max(1, token - _BYTES) for token in ids)


def _named(text: str) -> Iterable[str]:
    """Return the numbers, names and quoted words of a text."""
    return (*_NUMBER.findall(text), *_NAME.findall(text), *_QUOTED.findall(text))


def _text(line: _Line, runs: Sequence[_Run]) -> str:
    return runs[line.run].text[line.first : line.last]


def _note(run: _Run, line: _Line, share: float, decoded_characters: Callable[[int], int]) -> Note:
    """Return a line with its tokens. They begin with the one that says its first character."""
    begin = run.begin + token_at(decoded_characters, len(run.ids), line.first)
    end = run.begin + bisect.bisect_left(range(len(run.ids) + 1), line.last, key=decoded_characters)
    return Note(run.stream, begin, end, run.text[line.first : line.last], share, run.source)
