"""A question for what holds now gets the newest statement, and not those that it replaces.

Several quotes may answer one question: "I live in Turin these days", and months later "I have moved to Leeds for good".
A small model takes the first one, whatever dates stand beside them. So the older ones are not quoted where the question
asks for the present: they are cited all the same. Two statements are one thing at two times where one speaker says
both, and either most of their words are the same, or both answer a question that says "now" about as well.
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
    r"\b(was|were|did|had|before|earlier|earliest|first|formerly|previous\w*|past|used|ever|history|since|until"
    r"|change[sd]?|all|both|each|every|list|how many|how often)\b",
    re.I,
)
_SAME = 2 / 3  # of the words of each: the rest is what changed
_AS_NEAR = 0.7  # of the cosine of the best one by the same speaker


@dataclasses.dataclass(frozen=True)
class Quote:
    """A sentence that was chosen, what it says behind who says it, and how it is to the question."""

    sentence: Sentence
    text: str
    alike: float  # its cosine with the question, each as a whole
    time: Time

    @property
    def speaker(self) -> str:
        return without_speaker(self.text)[0]

    @property
    def words(self) -> frozenset[str]:
        return frozenset(words_apart(without_speaker(self.text)[1]))


def without_older(quotes: Sequence[Quote], question: str) -> list[Sentence]:
    """Return the sentences without those that a newer one replaces, in their order, the newer ones marked.

    A question for other times, or for several things, keeps all.
    """
    now = bool(_NOW.search(question))
    if _OTHER_TIMES.search(question) or not (now or _PRESENT.search(question)):
        return [one.sentence for one in quotes]
    asked = frozenset(words_apart(question))

    def answers(one: Quote) -> bool:
        best = max(other.alike for other in quotes if other.speaker == one.speaker)
        return bool(one.speaker) and one.alike > 0 and one.alike >= _AS_NEAR * best

    def replaced_by(older: Quote, newer: Quote) -> bool:
        if older.time >= newer.time or older.speaker != newer.speaker or newer.text.endswith(MARKS):
            return False
        mine, theirs = older.words, newer.words
        is_same = len(mine & theirs) >= _SAME * max(len(mine), len(theirs)) and mine & asked == theirs & asked
        return (is_same and mine != theirs) or (now and answers(older) and answers(newer))

    kept = []
    for one in quotes:
        if not any(replaced_by(one, other) for other in quotes):
            newest = one.sentence.newest or any(replaced_by(other, one) for other in quotes)
            kept.append(dataclasses.replace(one.sentence, newest=newest))
    return kept
