"""A short text is quoted as a whole: a note, a message, a paragraph of an encyclopedia.

The sentence that is nearest to a question names what it asks about, and the answer is often in the next one. So where a
text is no longer than a paragraph, all of it stands in its sentence's place, as far as there is room. What somebody
says in a talk of several stands alone, and so does a sentence of a longer text.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import everlong._core as _core
from everlong.errors import MemoryNotFoundError
from everlong.memory.origins import text_in
from everlong.memory.where import Where
from everlong.retrieval.quotes import Sentence, block_of
from everlong.text.encoding import decode_text
from everlong.text.unit_context import is_talk

SHORT = 224  # tokens of such a text, at most
ROOM = 640  # tokens of a question's quotes, up to which texts stand in the place of their sentences

Span = tuple[int, int, int]  # a stream, and where a text begins and ends in it


class ShortTexts:
    """The short texts that one question's sentences stand in, as far as they pass `where`."""

    def __init__(self, core: _core.Memory, tokenizer: Any, where: Where) -> None:
        self._core, self._tokenizer, self._where = core, tokenizer, where
        self._spans: dict[int, Span | None] = {}  # by block

    def of(self, sentences: Sequence[Sentence]) -> dict[Sentence, Span]:
        """Return, for each sentence that stands in such a text, where that is. What was forgotten since has none."""
        found = {}
        for one in sentences:
            block = block_of(self._core, one)
            if block is None:
                continue
            if block.id not in self._spans:
                self._spans[block.id] = self._span_of(block)
            if (span := self._spans[block.id]) is not None:
                found[one] = span
        return found

    def _span_of(self, block: _core.BlockInfo) -> Span | None:
        """Return where the text is that a block is of, if it is short, no talk, and in one place."""
        text, stream = text_in(block.tags), block.stream
        if block.role != "read" or not block.source or not text or block.end - block.begin > SHORT:
            return None
        try:
            near = self._core.blocks.pages_of(stream, max(0, block.begin - SHORT), block.end + SHORT)
            blocks = [self._core.blocks.info(number) for number in dict.fromkeys(page.block for page in near)]
            parts = [one for one in blocks if text_in(one.tags) == text]
            begin, end = parts[0].begin, parts[-1].end
            if end - begin > SHORT or sum(one.end - one.begin for one in parts) != end - begin:
                return None
            ids = [one.id for one in parts]
            if self._where.chooses and len(self._where.blocks(self._core, among=ids)) < len(ids):
                return None
            words = decode_text(self._tokenizer, self._core.blocks.token_ids(stream, begin, end).tolist())
        except (MemoryNotFoundError, IndexError):
            return None
        return None if is_talk(words) else (stream, begin, end)


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
