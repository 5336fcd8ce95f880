"""Chains of facts, to learn to walk from: each names what the next one is about, and a question needs them all.

"The tin lantern belongs to Orla Vesk." - "Orla Vesk lives in Brunnow." - Where does the owner of the tin lantern live?

Names, things and the words of the statements of one split are in no other's.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Literal

import numpy as np

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
    """From {x} of one kind to {y} of another."""

    source: _Kind
    target: _Kind
    statements: dict[ChainSplit, tuple[str, ...]]
    noun: str  # "the owner of {x}": what a question calls {y}
    question: str  # who or what {y} is, of {x}


_RELATIONS = (
    _Relation(
        "thing",
        "person",
        {
            "train": (
                "{x} belongs to {y}.",
                "It was {y} who bought {x} at the autumn fair.",
                "Nobody but {y} was ever allowed to touch {x}.",
                "{y} kept {x} under lock and key.",
            ),
            "test": (
                "{x} is the property of {y}.",
                "{y} would not part with {x} for any money.",
                "By her will {x} had passed to {y}.",
            ),
        },
        "the owner of {x}",
        "Who is the owner of {x}?",
    ),
    _Relation(
        "thing",
        "person",
        {
            "train": (
                "The key of {x} lies where {y} lives.",
                "Whoever wants the key of {x} must ask {y} for it.",
                "{y} wears the key of {x} on a ribbon.",
            ),
            "test": (
                "The key of {x} was entrusted to {y}.",
                "There is one key to {x}, and {y} has hidden it.",
            ),
        },
        "the one who has the key of {x}",
        "Who has the key of {x}?",
    ),
    _Relation(
        "person",
        "person",
        {
            "train": (
                "{x} learned the trade from {y}.",
                "For seven years {y} had been the master of {x}.",
                "All that {x} knew had been taught by {y}.",
            ),
            "test": (
                "{x} served an apprenticeship under {y}.",
                "{y} had taught {x} everything.",
            ),
        },
        "the teacher of {x}",
        "Who was the teacher of {x}?",
    ),
    _Relation(
        "person",
        "person",
        {
            "train": (
                "{x} was brought up by {y}.",
                "After the fire {y} took {x} in as a child.",
                "{y} raised {x} from the cradle.",
            ),
            "test": (
                "{x} grew up under the roof of {y}.",
                "It was {y} who adopted {x}, a foundling.",
            ),
        },
        "the person who brought up {x}",
        "Who brought up {x}?",
    ),
    _Relation(
        "person",
        "town",
        {
            "train": (
                "{x} lives in {y}.",
                "The house of {x} stands in {y}.",
                "Since last spring {x} has had rooms in {y}.",
                "{x} settled down in {y}, near the old mill.",
            ),
            "test": (
                "{x} makes a home in {y}.",
                "You will find {x} in {y}, behind the church.",
                "{x} had moved to {y} for good.",
            ),
        },
        "the town where {x} lives",
        "In which town does {x} live?",
    ),
    _Relation(
        "person",
        "town",
        {
            "train": ("{x} was born in {y}.", "{y} was the birthplace of {x}."),
            "test": ("{x} first saw the light of day in {y}.", "{x} is a native of {y}."),
        },
        "the birthplace of {x}",
        "Where was {x} born?",
    ),
    _Relation(
        "town",
        "person",
        {
            "train": (
                "The mayor of {x} is called {y}.",
                "{x} has elected {y} for its mayor.",
                "As mayor of {x} they chose {y}.",
            ),
            "test": (
                "{y} governs {x} as its mayor.",
                "The good people of {x} made {y} their mayor.",
            ),
        },
        "the mayor of {x}",
        "Who is the mayor of {x}?",
    ),
    _Relation(
        "town",
        "end",
        {
            "train": ("{x} is famous for its {y}.", "In {x} they make {y} and nothing else."),
            "test": ("The whole trade of {x} is {y}.", "Travellers come to {x} to buy {y}."),
        },
        "what {x} is famous for",
        "What is {x} known for?",
    ),
    _Relation(
        "person",
        "end",
        {
            "train": ("What {x} feared most of all was {y}.", "{x} went pale at the mere thought of {y}."),
            "test": ("{x} could not bear {y}.", "Nothing frightened {x} so much as {y}."),
        },
        "what {x} is afraid of",
        "What is {x} afraid of?",
    ),
)

_FIRST = {
    "train": (
        "Orla", "Tobin", "Maud", "Casper", "Ines", "Rufus", "Greta", "Silas", "Petra", "Anselm", "Flora", "Hugo",
        "Lydia", "Bertram", "Nell", "Oswin",
    ),
    "test": (
        "Isolde", "Magnus", "Thea", "Corwin", "Beatrix", "Jonas", "Ottilie", "Fabian", "Rosalind", "Lorenz", "Edda",
        "Quentin",
    ),
}  # fmt: skip
_STEMS = {
    "train": ("Vesk", "Harn", "Tol", "Brem", "Quill", "Dorn", "Sarr", "Pell", "Wick", "Lund", "Mar", "Keth"),
    "test": ("Zand", "Grav", "Holl", "Fenn", "Trask", "Yarr", "Bol", "Ness", "Crav", "Ould"),
}
_PERSON_ENDS = ("man", "ey", "ic", "low", "ett", "ane", "or", "is")
_TOWN_ENDS = ("bury", "mouth", "wick", "stead", "ford", "holm", "by", "haven")
_MADE = {
    "train": ("tin", "copper", "walnut", "green", "iron", "painted", "velvet", "cracked", "narrow", "gilded"),
    "test": ("pewter", "ivory", "crimson", "rosewood", "dented", "striped", "marble", "slender"),
}
_THINGS = {
    "train": (
        "lantern", "chest", "clock", "harp", "mirror", "saddle", "casket", "loom", "globe", "cupboard", "flute",
        "anchor",
    ),
    "test": ("cabinet", "compass", "cradle", "spinet", "goblet", "barometer", "wardrobe", "sundial", "trunk"),
}  # fmt: skip
_ENDS = {
    "town": {
        "train": ("bell ropes", "blue pottery", "smoked eels", "paper kites", "felt hats"),
        "test": ("glass beads", "wooden clogs", "honey cakes", "brass buttons"),
    },
    "person": {
        "train": ("thunder", "deep water", "black dogs", "locked doors", "geese"),
        "test": ("spiders", "high towers", "the dark", "strangers"),
    },
}


def draw_chains(random: np.random.Generator, hops: Sequence[int], split: ChainSplit) -> list[Chain]:
    """A chain of each of these lengths; no two name the same person, thing or town. ValueError for other lengths, and
    for more chains than there are names.
    """
    if not all(1 <= count <= MOST_HOPS for count in hops):
        raise ValueError(f"chains of {sorted(set(hops))} facts, expected 1 to {MOST_HOPS}")
    names = _Names(random, split)
    return [_chain(random, count, split, names) for count in hops]


class _Names:
    """Of one text: none is given twice."""

    def __init__(self, random: np.random.Generator, split: ChainSplit) -> None:
        def shuffled(names: Sequence[str]) -> list[str]:
            return [names[at] for at in random.permutation(len(names))]

        surnames = [stem + end for stem in _STEMS[split] for end in _PERSON_ENDS]
        firsts = itertools.cycle(shuffled(_FIRST[split]))
        self._random = random
        self._split = split
        self._left = {
            "person": [f"{next(firsts)} {surname}" for surname in shuffled(surnames)],
            "town": shuffled([stem + end for stem in _STEMS[split] for end in _TOWN_ENDS]),
            "thing": shuffled([f"the {made} {thing}" for made in _MADE[split] for thing in _THINGS[split]]),
        }

    def take(self, kind: _Kind, of: _Kind) -> str:
        if kind == "end":
            said = _ENDS[of][self._split]
            return said[int(self._random.integers(len(said)))]
        if not self._left[kind]:
            raise ValueError(f"there are no more names of the kind {kind!r}: ask for fewer chains in one text")
        return self._left[kind].pop()


def _chain(random: np.random.Generator, hops: int, split: ChainSplit, names: _Names) -> Chain:
    while True:
        relations = _way(random, hops)
        if relations is not None:
            break
    said: str = names.take(relations[0].source, relations[0].source)
    called, statements = said, []
    question = ""
    for relation in relations:
        target = names.take(relation.target, relation.source)
        forms = relation.statements[split]
        statement = forms[int(random.integers(len(forms)))].format(x=said, y=target)
        statements.append(statement[0].upper() + statement[1:])
        question, called = relation.question.format(x=called), relation.noun.format(x=called)
        said = target
    return Chain(question, tuple(statements), said)


def _way(random: np.random.Generator, hops: int) -> list[_Relation] | None:
    """Relations that lead on from one another, none twice; None where it ends too soon."""
    kind: _Kind = "thing" if random.random() < 0.6 else "person"
    way: list[_Relation] = []
    for _ in range(hops):
        there = [relation for relation in _RELATIONS if relation.source == kind and relation not in way]
        if not there:
            return None
        way.append(there[int(random.integers(len(there)))])
        kind = way[-1].target
    return way
