"""What a text is about, in a few words of its own: its tags, where nobody gives any."""

from __future__ import annotations

import collections
import itertools
import math
import re
from collections.abc import Callable, Sequence
from typing import Final, Protocol

TAGS_A_BLOCK: Final = 6
MOST_CHARACTERS: Final = 64  # of a tag

_WORD = re.compile(r"[^\W\d_][\w'\u2019-]+")
_ENDS = re.compile(r"[.!?:;\u201c\u201d\"\n]")


class Tagger(Protocol):
    """Says what a block is about. Called on the path of reading, so it must be fast."""

    def tags(self, text: str) -> Sequence[str]:
        """Return the best tags first; there may be none."""


class Keyphrases:
    """Tags a text with its own words: those that are frequent in it and rare in the memory, and names of two words.

    score = (1 + log of how often it is there) * rarity; for a name of two words, the sum of theirs. Case does not
    count. `rarity` returns a number for each of several words, such as log(1 + pages / pages with it) of the memory.
    """

    def __init__(self, rarity: Callable[[Sequence[str]], Sequence[float]], count: int = TAGS_A_BLOCK) -> None:
        self._rarity = rarity
        self._count = count

    def tags(self, text: str) -> list[str]:
        """Return at most `count` tags of a text, the best first."""
        found = collections.Counter(phrases_of(text))
        words = sorted({word for phrase in found for word in phrase.split()})
        rarity = dict(zip(words, self._rarity(words), strict=True)) if words else {}
        scores = {
            phrase: (1 + math.log(times)) * sum(rarity[word] for word in phrase.split())
            for phrase, times in found.items()
        }
        best = sorted(scores, key=lambda phrase: (-scores[phrase], phrase))
        chosen: list[str] = []
        for phrase in best:
            if not any(phrase in other.split() for other in chosen):  # a name says its words
                chosen.append(phrase)
            if len(chosen) == self._count:
                break
        return chosen


def phrases_of(text: str) -> list[str]:
    """Return words of a text in lower case, and names: two neighbours that each begin with a capital letter."""
    phrases = []
    for sentence in _ENDS.split(text):
        words = [match for match in _WORD.finditer(sentence) if len(match[0]) > 2]
        phrases += [_plain(match[0]) for match in words]
        for one, next_ in itertools.pairwise(words):
            if one[0][0].isupper() and next_[0][0].isupper() and next_.start() == one.end() + 1:
                phrases.append(f"{_plain(one[0])} {_plain(next_[0])}")
    return [phrase for phrase in phrases if len(phrase) <= MOST_CHARACTERS]


def _plain(word: str) -> str:
    lower = word.lower().replace("\u2019", "'")
    return lower.removesuffix("'s").strip("_")  # underscores stand for italics in plain texts
