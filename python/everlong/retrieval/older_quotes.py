"""A question for what holds now gets the newest statement, and not those that it replaces.

Several quotes may answer one question: "I live in Turin these days", and months later "I have moved to Leeds for good".
A small model takes the first one, whatever dates stand beside them. So the older ones are not quoted where the question
asks for the present: they are cited all the same. Two statements are one thing at two times where one speaker makes
both on two occasions, and either they differ behind what they have in common, or both answer a question that says "now"
about as well. What stands in one text, as the rows of a table do, replaces nothing in it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from everlong.retrieval.quote_choice import MARKS
from everlong.retrieval.quotes import Sentence
from everlong.retrieval.recency import Time
from everlong.text.unit_context import without_speaker
from everlong.text.words import words_apart

_NOW = re.compile(r"\b(now|nowadays|currently|current|today|these days|at present|at the moment|latest|newest)\b", re.I)
_PRESENT = re.compile(r"\b(is|does|has|what's|where's|who's)\b", re.I)
_OTHER_TIMES = re.compile(
    r"\b(was|were|did|had|before|earlier|earliest|first|last|former\w*|previous\w*|prior|past|used|ever|ago|once|old"
    r"|older|oldest|original\w*|initial\w*|yesterday|history|since|until|change[sd]?)\b",
    re.I,
)
_SEVERAL = re.compile(
    r"\b(are|all|both|each|every|list|how many|how often|who|whom|whose"
    r"|(which|what)( of)?( the| your| my| our)? (?!is\b|was\b|has\b|does\b)\w+s)\b",
    re.I,
)
_SAME = 2 / 3  # of the words of each: the rest is what changed
_AS_NEAR = 0.7  # of the cosine of the best one by the same speaker


@dataclasses.dataclass(frozen=True)
class Quote:
    """A sentence that was chosen, what it says behind who says it, and how it is to the question."""

    sentence: Sentence
    text: str
    alike: float  # its cosine with a question that says "now", each as a whole
    time: Time
    occasion: tuple[object, ...]  # what one reading or turn has: its source, and when that was

    @property
    def speaker(self) -> str:
        return without_speaker(self.text)[0]

    @property
    def words(self) -> list[str]:
        return words_apart(without_speaker(self.text)[1])


def says_now(question: str) -> bool:
    """Return whether a question asks for the present in so many words."""
    return bool(_NOW.search(question))


def without_older(quotes: Sequence[Quote], question: str) -> list[Sentence]:
    """Return the sentences without those that a newer one replaces, in their order, the newer ones marked.

    A question for other times, or for several things, keeps all.
    """
    now = says_now(question)
    if any(kind.search(question) for kind in (_OTHER_TIMES, _SEVERAL)) or not (now or _PRESENT.search(question)):
        return [one.sentence for one in quotes]
    asked = frozenset(words_apart(question))

    def answers(one: Quote) -> bool:
        best = max(other.alike for other in quotes if other.speaker == one.speaker)
        return bool(one.speaker) and one.alike > 0 and one.alike >= _AS_NEAR * best

    def has_other_value(older: Quote, newer: Quote) -> bool:
        mine, theirs = older.words, newer.words
        shared = len(set(mine) & set(theirs)) >= _SAME * max(len(set(mine)), len(set(theirs)))
        same = next((at for at, (one, other) in enumerate(zip(mine, theirs, strict=False)) if one != other), 0)
        # What stands before it is the thing, and what it is asked for: another thing differs sooner.
        return shared and 2 * same >= min(len(mine), len(theirs)) and asked & set(mine) == asked & set(theirs)

    def replaced_by(older: Quote, newer: Quote) -> bool:
        if older.time >= newer.time or older.speaker != newer.speaker or older.occasion == newer.occasion:
            return False
        if newer.text.endswith(MARKS):
            return False
        return has_other_value(older, newer) or (now and answers(older) and answers(newer))

    kept = []
    for one in quotes:
        if not any(replaced_by(one, other) for other in quotes):
            newest = one.sentence.newest or any(replaced_by(other, one) for other in quotes)
            kept.append(dataclasses.replace(one.sentence, newest=newest))
    return kept
