"""What comes back as a user reads it: from where, in which words, found by which part."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar, cast

import everlong._core as _core
from everlong.errors import ClosedError, MemoryNotFoundError
from everlong.frame.frame import Frame
from everlong.frame.part import Offer
from everlong.memory import places
from everlong.memory.origins import split_reserved_tags
from everlong.memory.where import Role, event_time
from everlong.retrieval.quotes import Sentence
from everlong.retrieval.recall import Recall, SearchOutcome
from everlong.text.encoding import decode_text

_Given = TypeVar("_Given")


class CitationBuilder:
    """Makes citations for one frame's memory. What another thread forgot since it was found is left out."""

    def __init__(self, frame: Frame, tokenizer: Any) -> None:
        self._frame, self._core, self._tokenizer = frame, frame.memory.core, tokenizer
        self._details_alone = frame.config.answer.recall_mode == "detail"

    def found(self, found: SearchOutcome, quotes_alone: Sequence[Sentence] | None = None) -> tuple[Recall, ...]:
        """Return what comes back of a search, best first: its pages, then blocks as Detail Tokens.

        With `quotes_alone` the model has these sentences and nothing else.
        """
        offers = found.offers
        if self._details_alone:
            offers = tuple(offer for offer in offers if not self._has_details(offer.page.block))
        soft = [one for one in found.blocks if self._has_details(one.page.block)]

        def cited(one: Offer) -> Recall:
            used = quotes_alone is None or any(sentence.within(one) for sentence in quotes_alone)
            return dataclasses.replace(self._pages_of(one), used=used)

        return (*_cited(cited, offers), *_cited(functools.partial(self._whole, used=quotes_alone is None), soft))

    def places(self, offers: Sequence[Offer]) -> tuple[Recall, ...]:
        """Return offers of pages as they are, in their order."""
        return tuple(_cited(self._pages_of, offers))

    def pages(self, pages: Sequence[_core.PageRef], found_by: str) -> tuple[Recall, ...]:
        """Return pages that came back without a search, a block at a time, in their order, with score 0."""

        def cited(of_block: Sequence[_core.PageRef]) -> Recall:
            block, span = of_block[0].block, (of_block[0].begin, of_block[-1].end)
            as_details = self._details_alone and self._has_details(block)
            return self._recall(block, span, span, 0.0, (found_by,), block_id=block, as_details=as_details)

        return tuple(_cited(cited, (list(run) for _, run in itertools.groupby(pages, key=lambda page: page.block))))

    def lines(self, lines: Iterable[tuple[int, tuple[int, int], float]], found_by: str) -> tuple[Recall, ...]:
        """Return tokens that were found by themselves, each with its stream, span and score."""

        def cited(line: tuple[int, tuple[int, int], float]) -> Recall:
            stream, span, score = line
            block = self._core.blocks.pages_of(stream, span[0], span[0] + 1)[0].block
            return self._recall(block, span, span, score, (found_by,), block_id=block)

        return tuple(_cited(cited, lines))

    def is_there(self, recall: Recall) -> bool:
        """Return whether the memory has all of it still. Of a memory that was closed nobody can tell."""
        try:
            stream = self._core.blocks.info(recall.block_id).stream
            for page in self._core.blocks.pages_of(stream, *recall.span):
                self._core.blocks.info(page.block)  # another process may have forgotten it
            if self._text(stream, recall.span) != recall.text:  # other text has come to some of its places
                return False
        except MemoryNotFoundError:
            return False
        except ClosedError:
            return True
        return True

    def _pages_of(self, one: Offer) -> Recall:
        return self._recall(
            one.page.block,
            (one.begin, one.end),
            (one.page.begin, one.page.end),
            one.score,
            one.found_by,
            block_id=one.pages[0].block,
            confidence=one.confidence,
        )

    def _whole(self, one: Offer, *, used: bool = True) -> Recall:
        info, page = self._core.blocks.info(one.page.block), one.page
        return self._recall(
            info.id,
            (info.begin, info.end),
            (page.begin, page.end),
            one.score,
            one.found_by,
            block_id=info.id,
            as_details=True,
            used=used,
        )

    def _recall(
        self,
        block: int,
        span: tuple[int, int],
        passage: tuple[int, int],
        score: float,
        found_by: tuple[str, ...],
        **fields: Any,
    ) -> Recall:
        """`block`: the block that gives source, role and origin."""
        info = self._core.blocks.info(block)
        return Recall(
            span=span,
            score=score,
            source=info.source,
            text=self._text(info.stream, span),
            passage=self._text(info.stream, passage),
            found_by=found_by,
            place=places.place_in(info.tags, passage[0] - info.begin, passage[1] - info.begin),
            role=cast(Role, info.role),
            origin=split_reserved_tags(info.tags)[1],
            told=datetime.datetime.fromtimestamp(event_time(info), datetime.UTC).isoformat(),
            **fields,
        )

    def _text(self, stream: int, span: tuple[int, int]) -> str:
        return decode_text(self._tokenizer, self._core.blocks.token_ids(stream, *span).tolist())

    def _has_details(self, block: int) -> bool:
        details = self._frame.parts.details
        return details is not None and details.has(block)


def _cited(cite: Callable[[_Given], Recall], found: Iterable[_Given]) -> Iterator[Recall]:
    for one in found:
        with contextlib.suppress(MemoryNotFoundError):
            yield cite(one)
