"""A short text is quoted as a whole: a note, a message, a paragraph of an encyclopedia.

The sentence that is nearest to a question names what it asks about, and the answer is often in the next one. So where a
text is no longer than a paragraph, all of it stands in its sentence's place, as far as there is room. What somebody
says in a talk of several stands alone, and so does a sentence of a longer text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import everlong._core as _core
from everlong.memory.where import Where
from everlong.retrieval.quotes import Sentence, block_of
from everlong.retrieval.recency import occasion_of
from everlong.text.unit_context import without_speaker

SHORT = 224  # tokens of such a text, at most
ROOM = 640  # tokens of all quotes of a question together, with such texts among them

Span = tuple[int, int, int]  # a stream, and where a text begins and ends in it


def short_texts(core: _core.Memory, texts: Mapping[Sentence, str], where: Where) -> dict[Sentence, Span]:
    """Return, for each sentence of a short text that passes `where` as a whole, where that text is.

    `texts`: what the sentences say. What somebody says in a talk has none.
    """
    spans: dict[int, Span | None] = {}
    found = {}
    for one, text in texts.items():
        block = None if without_speaker(text)[0] else block_of(core, one)
        if block is None:
            continue
        if block.id not in spans:
            spans[block.id] = _span_of(core, block, where)
        if (span := spans[block.id]) is not None:
            found[one] = span
    return found


def with_whole_texts(chosen: Sequence[Sentence], short: Mapping[Sentence, Span]) -> list[Sentence]:
    """Return the chosen sentences with `short` texts in place of theirs, those of the first ones, as room allows."""
    quotes = []
    left = ROOM - sum(one.end - one.begin for one in chosen)
    for one in chosen:
        stream, begin, end = short.get(one, (one.stream, one.begin, one.end))
        more = (end - begin) - (one.end - one.begin)
        if more <= left:
            left -= more
            quotes.append(dataclasses.replace(one, stream=stream, begin=begin, end=end))
        else:
            quotes.append(one)
    return quotes


def _span_of(core: _core.Memory, block: _core.BlockInfo, where: Where) -> Span | None:
    """Return where the whole text is that a block is of, if it is short and was read from a source."""
    if block.role != "read" or not block.source or block.end - block.begin > SHORT:
        return None
    blocks = [one for one in Where(source=block.source).blocks(core) if occasion_of(one) == occasion_of(block)]
    begin, end = min(one.begin for one in blocks), max(one.end for one in blocks)
    if end - begin > SHORT or {one.stream for one in blocks} != {block.stream}:
        return None
    if sum(one.end - one.begin for one in blocks) != end - begin:  # other text stands between its parts
        return None
    if where.chooses:
        passing = {one.id for one in dataclasses.replace(where, source=block.source).blocks(core)}
        if not passing.issuperset(one.id for one in blocks):
            return None
    return block.stream, begin, end
