"""Quotes as lines, each behind where it comes from, when that was, and who says it; the oldest first.

    [Session 12, in April] Mara: By the way, I work as a translator.
    [harbour.md, Minutes of the board, 2026-03-05, newest] The budget is 55,000 crowns.

A sentence alone does not tell these, and a question may ask for them. Where the text that was read begins with a title,
that stands behind its source's name, or in place of it where it has the name. A date stands only where `read` was told
one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import re
from collections.abc import Collection, Sequence
from typing import Any

import everlong._core as _core
from everlong.errors import MemoryNotFoundError
from everlong.memory.where import EVERYWHERE, Where, event_time
from everlong.retrieval.quotes import Sentence, block_of, words_of
from everlong.text.encoding import decode_text
from everlong.text.sentences import TURN
from everlong.text.words import words_in

_TITLE_CHARACTERS = 80  # at most, as of a source's name
_TITLE_TOKENS = 2 * _TITLE_CHARACTERS  # of a text's beginning, that are looked at
_NO_TITLE = re.compile(r".*[.!?;,:\u3002\uff01\uff1f]")  # its line ends as a sentence does
_MARKED = re.compile(r"#{1,6} +")


def lines_of(
    core: _core.Memory, tokenizer: Any, sentences: Sequence[Sentence], where: Where = EVERYWHERE
) -> tuple[str, ...]:
    """Return what sentences say, the oldest first, without those that were forgotten since.

    Of titles those stand there alone that pass `where`.
    """
    titles = _Titles(core, tokenizer, where)
    lines = []
    for one in sentences:
        block = block_of(core, one)
        if block is None:
            continue
        with contextlib.suppress(MemoryNotFoundError, IndexError):
            title = titles.of(block)
            head = _head(block, title, newest=one.newest)
            for words in words_of(core, tokenizer, [one]):
                if one.begin == block.begin:
                    words = _behind(words, {title, _shortened(block.source)})
                line = " ".join(filter(None, (head, one.before_it + words)))
                lines.append(((event_time(block), block.id, one.begin), line))
    return tuple(line for _, line in sorted(lines))


def _head(block: _core.BlockInfo, title: str, *, newest: bool) -> str:
    source = _shortened(block.source)
    named = title and f" {' '.join(words_in(source))} " in f" {' '.join(words_in(title))} "
    date = "" if block.happened is None else _day(block.happened)
    told = [*filter(None, ("" if named else source, title, date))]
    if newest:
        told.append("newest")
    return f"[{', '.join(told)}]" if told else ""


def _shortened(source: str) -> str:
    """Return a source's name on one line, cut where it is long."""
    name = " ".join(source.split())
    return name if len(name) <= _TITLE_CHARACTERS else f"{name[: _TITLE_CHARACTERS - 3]}..."


def _behind(words: str, heads: Collection[str]) -> str:
    """Return a text without its first line, where a head in front of it says that already."""
    line, _, rest = words.partition("\n")
    return rest.lstrip() if rest.strip() and _MARKED.sub("", line.strip()) in heads else words


def _day(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).astimezone().date().isoformat()


class _Titles:
    """The titles of the texts that blocks are of, as far as a question may see them."""

    def __init__(self, core: _core.Memory, tokenizer: Any, where: Where) -> None:
        self._core, self._where = core, where
        self._title = functools.cache(functools.partial(_title, core, tokenizer))
        self._blocks = functools.cache(self._blocks_of)

    def of(self, block: _core.BlockInfo) -> str:
        if not block.source:
            return ""
        there, seen = self._blocks(block.source, block.stream)
        while (earlier := there.get(block.begin)) is not None and earlier.happened == block.happened:
            block = earlier
        return self._title(block.id) if block.id in seen else ""

    def _blocks_of(self, source: str, stream: int) -> tuple[dict[int, _core.BlockInfo], frozenset[int]]:
        """Return a source's blocks by where they end, and the ids of those that may be seen."""
        blocks = Where(source=source).blocks(self._core)
        seen = dataclasses.replace(self._where, source=source).blocks(self._core) if self._where.chooses else blocks
        return {one.end: one for one in blocks if one.stream == stream}, frozenset(one.id for one in seen)


def _title(core: _core.Memory, tokenizer: Any, block: int) -> str:
    """Return the first line of a block, if it is a heading or stands alone, and is short; else nothing."""
    info = core.blocks.info(block)
    ids = core.blocks.token_ids(info.stream, info.begin, min(info.end, info.begin + _TITLE_TOKENS)).tolist()
    line, _, rest = decode_text(tokenizer, ids).lstrip().partition("\n")
    title = _MARKED.sub("", line.strip())
    alone = title != line.strip() or rest.partition("\n")[0].strip() == "" != rest
    if not words_in(title) or len(title) > _TITLE_CHARACTERS or _NO_TITLE.fullmatch(title) or TURN.match(f"\n{title}"):
        return ""
    return title if alone else ""
