"""Texts whose needs are known: facts planted in a book, each asked for again by the beginning of its own sentence."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from everlong.text.encoding import encode
from everlong_lab.corpora.planted import PlantedFact, draw_planted

_DRAWS = 4  # rounds of drawing facts, so that their sentences begin differently
_APART = 50  # rough distance in tokens between two facts


@dataclasses.dataclass(frozen=True)
class Cue:
    """What a text goes on with."""

    ids: torch.Tensor  # int64 [T]
    fact: tuple[int, int] | None  # tokens of the text that it needs; None: it needs none


@dataclasses.dataclass(frozen=True)
class NeedsText:
    """A piece of a book with facts in it, and what may follow it."""

    ids: torch.Tensor  # int64 [n]
    cues: tuple[Cue, ...]  # of its facts, in order of time
    behind: tuple[Cue, ...]  # the book as it goes on, piece after piece: it needs no fact


def cue_of(fact: PlantedFact) -> str | None:
    """Return its sentence up to its answer; None where the answer comes too early to say what is asked."""
    at = fact.statement.find(fact.answer)
    return fact.statement[:at].rstrip() if at >= 0.45 * len(fact.statement) else None


def needs_text(
    tokenizer: Any, book: torch.Tensor, random: np.random.Generator, *, old: int, new: int, facts: int, behind: int
) -> NeedsText:
    """Return `old` tokens of a book with `facts` facts, `new` tokens with half as many, and `behind` pieces of 14
    tokens.

    No fact stands in the last 200 of the old tokens, nor in the last 60 of all. Raises ValueError for a book that is
    too short.
    """
    tokens, piece = old + new, 14
    if len(book) < tokens + behind * piece + 1:
        raise ValueError(f"a book of {len(book):,} tokens, expected {tokens + behind * piece + 1:,} or more")
    first = int(random.integers(0, len(book) - tokens - behind * piece))
    drawn = _facts(random, facts + facts // 2)
    places = [
        *_places(random, 60, old - 200, len(drawn) - facts // 2),
        *_places(random, old + 60, tokens - 60, facts // 2),
    ]
    parts, cues, at, length = [], [], 0, 0
    for place, (fact, cue) in zip(places, drawn, strict=True):
        sentence = encode(tokenizer, f"\n\n{fact.statement}\n\n")
        parts += [book[first + at : first + place], sentence]
        length += place - at
        cues.append(Cue(encode(tokenizer, f"\n\n{cue}"), (length, length + len(sentence))))
        length, at = length + len(sentence), place
    parts.append(book[first + at : first + tokens])
    rest = book[first + tokens : first + tokens + behind * piece]
    return NeedsText(torch.cat(parts), tuple(cues), tuple(Cue(ids, None) for ids in torch.split(rest, piece)))


def _facts(random: np.random.Generator, count: int) -> list[tuple[PlantedFact, str]]:
    """Return facts with their cues, all of which differ; fewer than `count` where there are not so many."""
    by_cue: dict[str, PlantedFact] = {}
    for _ in range(_DRAWS):
        for fact in draw_planted(random, 20):
            cue = cue_of(fact)
            if cue is not None:
                by_cue.setdefault(cue, fact)
    found: Sequence[tuple[str, PlantedFact]] = list(by_cue.items())
    return [(found[at][1], found[at][0]) for at in random.permutation(len(found))[:count]]


def _places(random: np.random.Generator, first: int, last: int, count: int) -> list[int]:
    free = np.arange(first, last, min(_APART, max(1, (last - first) // max(1, count))))
    return sorted(int(place) for place in random.choice(free, count, replace=False))
