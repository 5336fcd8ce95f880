"""Which recalled sentences are quoted, where several are: near ones, each of which says something that no other says.

By likeness alone small talk and copies stand among them, and of a question that names several things one is told twice.
So they are chosen one by one. What counts is a sentence's own score, the question's words that no chosen one has, each
by how rare it is, and whether its group has none yet. One that asks gives way: it is like a question and seldom answers
one. So does one that names nobody whom the question names: a small model takes what is told of others for an answer.
What is far below the best one is not chosen: fewer are quoted then. Neither is what says of another thing what a
sentence says of the thing in question.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType

from everlong.frame.part import Offer
from everlong.retrieval.quotes import Sentence
from everlong.text.unit_context import without_speaker
from everlong.text.words import names_in, words_apart

Words = frozenset[str]

# Shares of the best sentence's score: what a chosen sentence has at least, and what one loses that asks, or that has no
# name of the question's; what all of the question's words count that none has yet, and what the first sentence of a
# group has before another.
REACH = 0.75
_REACH_IN_SHORT = 0.5  # where what it says best may be in the next sentence
_ASKS = 0.2
_NAMES_NOBODY = 0.2
_COVERED = 0.1
_FIRST_OF_GROUP = 0.02
_COPIED = 0.9  # of a sentence's words, by how rare they are: a copy has so many of another's
_LIKE = 0.5  # of a sentence's longer words: one that says the same of another thing has so many, and two at least
_LONGER = 4  # letters; shorter words say little
_DENIALS = frozenset({"no", "not", "never", "none", "nothing", "nobody", "without", "t", "nicht", "kein", "nie"})
_ENDING = 3  # letters that two forms of a word may differ in, at its end
_STEM = 3  # letters that they have in common, at least
MARKS = ("?", "\uff1f", "\u061f")  # what asks ends with one


def choose(
    ranked: Sequence[Sentence],
    texts: Sequence[str],
    question: str,
    groups: Sequence[Offer],
    rarity: Callable[[Sequence[str]], list[float]],
    count: int,
    short: Mapping[Sentence, Hashable] = MappingProxyType({}),
) -> list[Sentence]:
    """Return at most `count` of the sentences, which are best first and say these `texts`, in the order of choice.

    `short`: the short text that a sentence stands in (retrieval/whole_texts.py). One is chosen of each.
    """
    if not ranked:
        return []
    texts_of = dict(zip(ranked, texts, strict=True))
    words = {one: frozenset(words_apart(text)) for one, text in texts_of.items()}
    names = _words_of_names(question)
    score = _scores(ranked, texts, words, question)
    best = max(score.values())
    # Of cosines all may be below zero.
    near, near_in_short = (best - (1 - reach) * abs(best) for reach in (REACH, _REACH_IN_SHORT))
    waiting = [one for one in ranked if score[one] >= (near_in_short if one in short else near)]
    rare = _rarities(frozenset().union(words_apart(question), *(words[one] for one in waiting)), rarity)
    asked = {word: rare[word] for word in words_apart(question)}
    whole = max(sum(asked.values()), 1e-9)
    having = {one: _among(asked, words[one]) for one in waiting}

    speaker = {one: without_speaker(texts_of[one])[0] for one in waiting}
    named = {one for one in waiting if asked.keys() >= set(words_apart(speaker[one]))}
    longer = {one: {word for word in words[one] if len(word) >= _LONGER and word.isalpha()} for one in waiting}
    telling_apart = {one: _capitals(texts_of[one]) | set(asked) for one in waiting}
    telling = [one for one in waiting if not texts_of[one].endswith(MARKS)]

    def of_other_thing(one: Sentence, other: Sentence) -> bool:
        if not having[one] < having[other]:
            return False
        lacks = having[other] - having[one]
        is_other = not lacks.isdisjoint(names) or max(asked[word] for word in lacks) >= whole / len(asked)
        if speaker[one] and speaker[other] and one not in named and other in named:
            return is_other and len(_among(words[one], words[other])) >= _LIKE * len(words[one])
        return is_other and len(_among(longer[one], words[other])) >= max(2, _LIKE * len(longer[one]))

    waiting = [one for one in waiting if not any(of_other_thing(one, other) for other in telling)]
    of_groups = {one: {at for at, group in enumerate(groups) if one.within(group)} for one in waiting}
    chosen: list[Sentence] = []
    missing, new_groups = set(asked), set(range(len(groups)))

    def value(one: Sentence) -> float:
        covered = sum(asked[word] for word in having[one] & missing) / whole
        return score[one] + abs(best) * (_COVERED * covered + _FIRST_OF_GROUP * bool(of_groups[one] & new_groups))

    while waiting and len(chosen) < count:
        one = max(waiting, key=value)
        chosen.append(one)
        missing -= having[one]
        new_groups -= of_groups[one]
        waiting = [
            other
            for other in waiting
            if other is not one
            and not (other in short and short[other] == short.get(one))
            and not (speaker[other] == speaker[one] and _is_copy(words[other], words[one], rare, telling_apart[other]))
        ]
    return chosen


def _scores(
    ranked: Sequence[Sentence], texts: Sequence[str], words: Mapping[Sentence, Words], question: str
) -> dict[Sentence, float]:
    """Return the sentences' scores, less what those lose that ask or name nobody.

    What a second search found may name whom the best sentence of the first one names.
    """
    best = next((text for one, text in zip(ranked, texts, strict=True) if not one.second), "")
    names, further = _words_of_names(question), _words_of_names(best)
    scores = {}
    for one, text in zip(ranked, texts, strict=True):
        theirs = names | further if one.second else names
        lost = _ASKS * text.endswith(MARKS) + _NAMES_NOBODY * (bool(names) and theirs.isdisjoint(words[one]))
        scores[one] = one.score - lost * abs(ranked[0].score)
    return scores


def _words_of_names(text: str) -> set[str]:
    return {word for name in names_in(text) for word in words_apart(name)}


def _rarities(words: Words, rarity: Callable[[Sequence[str]], list[float]]) -> Mapping[str, float]:
    ordered = sorted(words)
    return dict(zip(ordered, rarity(ordered), strict=True))


def _among(wanted: Iterable[str], words: Words) -> set[str]:
    """Return those of the wanted words of which some of the words are forms, as "dog" is of "dogs"."""
    forms = words.union(*map(_stems, words))
    return {word for word in wanted if word in forms or not words.isdisjoint(_stems(word))}


def _stems(word: str) -> list[str]:
    """Return the word without an ending, of each length that one may have."""
    return [word[:length] for length in range(max(_STEM, len(word) - _ENDING), len(word))]


def _is_copy(words: Words, of: Words, rare: Mapping[str, float], telling_apart: Collection[str]) -> bool:
    """Return whether nearly all that some words say is said by others.

    What has a number, a name or a word of the question of its own is no copy, and neither is what one of them denies.
    """
    own = words - of
    if any(not word.isalpha() or word in telling_apart for word in own) or (words ^ of) & _DENIALS:
        return False
    shared = sum(rare[word] for word in words & of)
    return shared >= _COPIED * sum(rare[word] for word in words)


def _capitals(text: str) -> set[str]:
    """Return the words that begin with a capital, in lower case."""
    return {part for word in text.split() if word[:1].isupper() for part in words_apart(word)}
