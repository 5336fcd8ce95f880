"""What a topic is about, in words that a person understands: phrases that its blocks have and others lack."""

from __future__ import annotations

import collections
import math
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

Topic = TypeVar("Topic", bound=int)

WORDS: Final = 3  # of a name


def names_of(phrases: Mapping[Topic, Sequence[Sequence[str]]]) -> dict[Topic, str]:
    """Return the name of every topic, by the phrases of each of its blocks; "" where no block has any.

    score = blocks of the topic that have the phrase * log(topics / topics that have it): tf-idf with topics as
    documents. So what stands all over a book names none of its topics. Of equal phrases the more frequent comes first,
    then the one nearest to the front of a block's phrases, where taggers put the best. A phrase that shares a word with
    an earlier one is left out.
    """
    counts = {topic: collections.Counter(p for of in blocks for p in set(of)) for topic, blocks in phrases.items()}
    topics_with = collections.Counter(phrase for count in counts.values() for phrase in count)

    fronts = {
        topic: {phrase: min(of.index(phrase) for of in blocks if phrase in of) for phrase in counts[topic]}
        for topic, blocks in phrases.items()
    }

    def score(topic: Topic, phrase: str) -> float:
        return counts[topic][phrase] * math.log(len(counts) / topics_with[phrase])

    names = {}
    for topic, count in counts.items():
        chosen: list[str] = []
        front = fronts[topic]
        for phrase in sorted(count, key=lambda p: (-score(topic, p), -count[p], front[p], p)):
            if len(chosen) == WORDS:
                break
            if not any(set(phrase.split()) & set(other.split()) for other in chosen):
                chosen.append(phrase)
        names[topic] = ", ".join(chosen)
    return names
