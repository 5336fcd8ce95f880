"""Chains of facts, to learn to walk from: each fact names what the next one is about, and a question needs them all.

"The tin lantern belongs to Orla Vesk." - "Orla Vesk lives in Brunnow." - Where does the owner of the tin lantern live?

The splits share no names, things or words of statements.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Literal

import numpy as np

from everlong_lab.corpora.seeds import one_of
from everlong_lab.corpora.words import listed_in

ChainSplit = Literal["train", "test"]
_SPLITS: tuple[ChainSplit, ...] = ("train", "test")
MOST_HOPS = 3

_Kind = Literal["thing", "person", "town", "end"]


@dataclasses.dataclass(frozen=True)
class Chain:
    question: str
    statements: tuple[str, ...]  # in the order in which they lead on
    answer: str

    @property
    def hops(self) -> int:
        return len(self.statements)


@dataclasses.dataclass(frozen=True)
class _Relation:
    """A relation from {x} of one kind to {y} of another."""

    source: _Kind
    target: _Kind
    statements: dict[ChainSplit, tuple[str, ...]]
    noun: str  # "the owner of {x}": what a question calls {y}
    question: str  # asks who or what {y} is, given {x}


_LISTED = listed_in("chains")
_RELATIONS = [_Relation(**relation) for relation in _LISTED["relations"]]


def draw_chains(random: np.random.Generator, hops: Sequence[int], split: ChainSplit) -> list[Chain]:
    """Return a chain of each of these lengths. No two name the same person, thing or town.

    Raises ValueError for other lengths than 1 to MOST_HOPS, and for more chains than there are names.
    """
    if not all(1 <= count <= MOST_HOPS for count in hops):
        raise ValueError(f"chains of {sorted(set(hops))} facts, expected 1 to {MOST_HOPS}")
    names = _Names(random, split)
    return [_chain(random, count, split, names) for count in hops]


class _Names:
    """The names of one text; none is given twice."""

    def __init__(self, random: np.random.Generator, split: ChainSplit) -> None:
        def shuffled(names: Sequence[str]) -> list[str]:
            return [names[at] for at in random.permutation(len(names))]

        own = _LISTED[split]
        surnames = [stem + end for stem in own["stems"] for end in _LISTED["person suffixes"]]
        firsts = itertools.cycle(shuffled(own["first"]))
        self._random = random
        self._ends: dict[str, list[str]] = own
        self._left = {
            "person": [f"{next(firsts)} {surname}" for surname in shuffled(surnames)],
            "town": shuffled([stem + end for stem in own["stems"] for end in _LISTED["town suffixes"]]),
            "thing": shuffled([f"the {made} {thing}" for made in own["made"] for thing in own["things"]]),
        }

    def take(self, kind: _Kind, of: _Kind) -> str:
        if kind == "end":
            return one_of(self._random, self._ends[f"{of} ends"])
        if not self._left[kind]:
            raise ValueError(f"there are no more names of the kind {kind!r}: ask for fewer chains in one text")
        return self._left[kind].pop()


def _chain(random: np.random.Generator, hops: int, split: ChainSplit, names: _Names) -> Chain:
    while True:
        relations = _way(random, hops)
        if relations is not None:
            break
    values: str = names.take(relations[0].source, relations[0].source)
    called, statements = values, []
    question = ""
    for relation in relations:
        target = names.take(relation.target, relation.source)
        statement = one_of(random, relation.statements[split]).format(x=values, y=target)
        statements.append(statement[0].upper() + statement[1:])
        question, called = relation.question.format(x=called), relation.noun.format(x=called)
        values = target
    return Chain(question, tuple(statements), values)


def _way(random: np.random.Generator, hops: int) -> list[_Relation] | None:
    """Return relations that lead on from one another, none twice; None where the way ends too soon."""
    kind: _Kind = "thing" if random.random() < 0.6 else "person"
    way: list[_Relation] = []
    for _ in range(hops):
        there = [relation for relation in _RELATIONS if relation.source == kind and relation not in way]
        if not there:
            return None
        way.append(one_of(random, there))
        kind = way[-1].target
    return way
