"""What was told later stands before what it replaces, and passages that disagree make a search less sure.

A budget changes, a meeting moves: then two recalled sentences answer the same question. Two sentences tell of the same
thing where their scores are near each other, they share half of their longer words, and both have the same of the
question's. They also have values of one kind, numbers or names in mid-sentence, that the question lacks. If these
differ, they disagree. The newest is by the time of events that `read` was told, else of archiving, then by place.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import everlong._core as _core
from everlong.frame.part import Offer
from everlong.memory.where import event_time
from everlong.retrieval.quotes import Sentence, block_of, words_of
from everlong.retrieval.recall import SearchOutcome
from everlong.text.encoding import decode_text
from everlong.text.unit_context import without_speaker
from everlong.text.words import names_in

# The confidence of a search whose passages disagree, as a share of what it is otherwise.
DISAGREEING = 0.75
_NEAR = 0.75  # of the best sentence's score
_SHARED = 0.5  # of the words of the sentence with fewer
MOST_COMPARED = 8  # sentences that are compared with the best one

_NUMBER = re.compile(r"\w*\d[\w.,:]*\w|\d")
_WORD = re.compile(r"\w{4,}")  # shorter ones say little


Time = tuple[float, int, int]  # seconds since 1970, a block, and a place


@dataclasses.dataclass(frozen=True)
class _Statement:
    """A sentence, who says it, what it says, and when that was."""

    sentence: Sentence
    speaker: str
    words: str
    time: Time

    def values(self, question: str) -> tuple[frozenset[str], frozenset[str]]:
        """Return its numbers and its names, without those that the question has."""
        question_words = question.casefold()
        found = _NUMBER.findall(self.words), names_in(self.words)
        numbers, names = ([one.casefold() for one in of_kind] for of_kind in found)
        return frozenset(one for one in numbers if one not in question_words), frozenset(
            one for one in names if one not in question_words
        )


def newest_first(
    core: _core.Memory, tokenizer: Any, found: SearchOutcome, question_ids: npt.NDArray[np.int32]
) -> SearchOutcome:
    """Put the newest of the sentences that tell what the best one tells first, and its group.

    question_ids [T]: the question's token ids. Groups change places with their scores, so that these still fall.
    """
    if len(found.sentences) < 2:
        return found
    ranked = [one for one in found.sentences[:MOST_COMPARED] if one.score >= _NEAR * found.sentences[0].score]
    statements, question = _statements(core, tokenizer, ranked), decode_text(tokenizer, question_ids.tolist())
    if len(statements) < 2 or statements[0].sentence is not ranked[0]:
        return found
    same = [statements[0], *(one for one in statements[1:] if _same_subject(statements[0], one, question))]
    if len(same) < 2:
        return found
    disagree = len({one.values(question) for one in same}) > 1
    same.sort(key=lambda one: one.time, reverse=True)
    older = [one.sentence for one in same[1:]]
    chosen = [dataclasses.replace(same[0].sentence, newest=disagree), *older]
    offers = _by_time(found.offers, chosen)
    if disagree:
        offers = tuple(
            dataclasses.replace(one, confidence=None if one.confidence is None else DISAGREEING * one.confidence)
            for one in offers
        )
    told = {one.sentence for one in same}
    rest = (one for one in found.sentences if one not in told)
    return dataclasses.replace(found, offers=offers, sentences=(*chosen, *rest))


def time_of(block: _core.BlockInfo, sentence: Sentence) -> Time:
    """Return when a sentence of that block was, in an order of time."""
    return event_time(block), block.id, sentence.begin


def occasion_of(block: _core.BlockInfo) -> tuple[object, ...]:
    """Return what the blocks of one text have in common that was read; a turn of a conversation is one by itself."""
    return (block.source, block.happened) if block.role == "read" else (block.id,)


def _statements(core: _core.Memory, tokenizer: Any, ranked: Sequence[Sentence]) -> list[_Statement]:
    statements = []
    for one in ranked:
        block, words = block_of(core, one), words_of(core, tokenizer, [one])
        if block is not None and words:  # not forgotten since
            statements.append(_Statement(one, *without_speaker(one.before_it + words[0]), time_of(block, one)))
    return statements


def _same_subject(one: _Statement, other: _Statement, question: str) -> bool:
    """Return whether one speaker gives values of the same kind twice, for what the question names in both sentences."""
    if one.speaker != other.speaker:
        return False
    both = list(zip(one.values(question), other.values(question), strict=True))
    values = frozenset(word for kinds in both for kind in kinds for value in kind for word in _content(value))
    mine, theirs, question_words = _content(one.words) - values, _content(other.words) - values, _content(question)
    shared = len(mine & theirs) >= _SHARED * min(len(mine), len(theirs))
    return shared and not (mine ^ theirs) & question_words and any(first and second for first, second in both)


def _content(words: str) -> frozenset[str]:
    return frozenset(word.casefold() for word in _WORD.findall(words))


def _by_time(offers: Sequence[Offer], newest: Sequence[Sentence]) -> tuple[Offer, ...]:
    """Return the offers with those that hold these sentences in their order, each with the score of its new place."""
    holds: list[int] = []
    for one in newest:
        at = next((number for number, offer in enumerate(offers) if one.within(offer)), None)
        if at is not None and at not in holds:
            holds.append(at)
    moved = list(offers)
    for place, at in zip(sorted(holds), holds, strict=True):
        there = offers[place]
        moved[place] = dataclasses.replace(offers[at], score=there.score, confidence=there.confidence)
    return tuple(moved)
