"""Facts planted in text, to learn from: statements of many forms, each with a question and its answer.

None of them has the form of those that a memory is measured by (corpora/facts.py).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from everlong.text.encoding import encode


@dataclasses.dataclass(frozen=True)
class Planted:
    statement: str
    question: str
    answer: str


_PEOPLE = (
    "Mrs. Abernathy", "Mr. Tolliver", "Captain Orme", "Dr. Pell", "Aunt Griselda", "old Barnaby", "Miss Wren",
    "Uncle Fitch", "Lady Corbet", "the miller", "the sexton", "Sergeant Hale", "Widow Mapp", "Professor Quill",
    "the innkeeper", "Tobias", "Henrietta", "Jasper Lowe", "Philippa", "the blacksmith", "Nurse Dunne",
    "Squire Amory", "little Agnes", "Mr. Okafor",
)  # fmt: skip
_THINGS = (
    "silver teapot", "walnut desk", "brass telescope", "green umbrella", "leather trunk", "marble clock",
    "old violin", "porcelain doll", "copper kettle", "iron lantern", "velvet chair", "ivory comb",
    "glass paperweight", "wooden sledge",
)  # fmt: skip
_COLOURS = ("crimson", "pale blue", "olive green", "bright yellow", "charcoal grey", "violet", "orange", "snow white")
_TRADES = (
    "a glazier",
    "a beekeeper",
    "a cartographer",
    "a piano tuner",
    "a locksmith",
    "a botanist",
    "a ferryman",
    "a tailor",
)
_PLACES = (
    "the north attic", "the boathouse", "the apple cellar", "the back pantry", "the chapel loft", "the potting shed",
    "the east stable", "the music room", "the well house", "the linen press",
)  # fmt: skip
_SHIPS = (
    "Marigold",
    "Sea Hawk",
    "Providence",
    "Northern Star",
    "Halcyon",
    "Bold Endeavour",
    "Grey Goose",
    "Amphitrite",
)
_FOODS = (
    "plum dumplings",
    "smoked eel",
    "barley soup",
    "walnut bread",
    "pickled herring",
    "rhubarb tart",
    "roast quail",
)
_MONTHS = ("January", "March", "April", "June", "August", "September", "November", "December")
_BEASTS = ("a tame otter", "a blind terrier", "two parrots", "a lame donkey", "a grey tomcat", "a trained raven")
_METALS = ("pewter", "tin", "bronze", "solid silver", "wrought iron", "brass")

_FORMS: tuple[tuple[str, str, str], ...] = (
    (
        "{person} was born on the {day} of {month}.",
        "When was {person} born?",
        "{day} of {month}",
    ),
    (
        "The {thing} cost {person} exactly {number} shillings.",
        "How many shillings did the {thing} cost {person}?",
        "{number}",
    ),
    (
        "{person} hid the {thing} in {place}.",
        "Where did {person} hide the {thing}?",
        "{place}",
    ),
    (
        "Before the war {person} had worked as {trade}.",
        "What had {person} worked as before the war?",
        "{trade}",
    ),
    (
        "The ship on which {person} sailed was called the {ship}.",
        "What was the ship called on which {person} sailed?",
        "{ship}",
    ),
    (
        "{person} never ate anything but {food} on Sundays.",
        "What did {person} eat on Sundays?",
        "{food}",
    ),
    (
        "The door of {place} had been painted {colour}.",
        "What colour was the door of {place}?",
        "{colour}",
    ),
    (
        "The train of {person} left at {hour}:{minute} in the morning.",
        "At what time did the train of {person} leave?",
        "{hour}:{minute}",
    ),
    (
        "{person} kept {beast} in {place}.",
        "What did {person} keep in {place}?",
        "{beast}",
    ),
    (
        "The number of the room where {person} slept was {number}.",
        "What was the number of the room where {person} slept?",
        "{number}",
    ),
    (
        "The handle of the {thing} was made of {metal}.",
        "What was the handle of the {thing} made of?",
        "{metal}",
    ),
    (
        "{person} owed {other} a sum of {number} pounds.",
        "How many pounds did {person} owe {other}?",
        "{number}",
    ),
    (
        "It was {other} who had sold the {thing} to {person}.",
        "Who had sold the {thing} to {person}?",
        "{other}",
    ),
    (
        'The secret word of {person} was "{word}".',
        "What was the secret word of {person}?",
        "{word}",
    ),
    (
        "The telephone number of {person} is {phone}.",
        "What is the telephone number of {person}?",
        "{phone}",
    ),
    (
        "The file about the {thing} carries the reference {code}.",
        "Which reference does the file about the {thing} carry?",
        "{code}",
    ),
    (
        "{person}, who was {trade} by trade, had {count} children.",
        "How many children did {person} have?",
        "{count}",
    ),
    (
        "They found the {thing} of {person} at a depth of {number} fathoms.",
        "At what depth was the {thing} of {person} found?",
        "{number} fathoms",
    ),
    (
        "What {person} wanted most of all was to own {beast}.",
        "What did {person} want most of all?",
        "to own {beast}",
    ),
    (
        "The {ship} was bound for the coast in {month} with a cargo of {food}.",
        "What was the cargo of the {ship}?",
        "{food}",
    ),
)
_SYLLABLES = ("ka", "lo", "mir", "ta", "ven", "do", "sha", "ri", "bel", "quo", "zan", "pe")


def draw_planted(random: np.random.Generator, count: int) -> list[Planted]:
    """So many facts, no two of which ask about the same person or thing: at most 20."""

    def one_of(words: Sequence[str]) -> str:
        return words[int(random.integers(len(words)))]

    if count > len(_FORMS):
        raise ValueError(f"{count} facts are wanted, there are {len(_FORMS)} forms of them")
    people, others = np.split(random.permutation(len(_PEOPLE)), [len(_PEOPLE) - 4])
    things, places, ships = (random.permutation(len(words)) for words in (_THINGS, _PLACES, _SHIPS))
    facts = []
    for at, form in enumerate(random.permutation(len(_FORMS))[:count]):
        word = "".join(one_of(_SYLLABLES) for _ in range(3))
        said = {
            "person": _PEOPLE[people[at % len(people)]],
            "other": _PEOPLE[int(random.choice(others))],
            "thing": _THINGS[things[at % len(things)]],
            "place": _PLACES[places[at % len(places)]],
            "ship": _SHIPS[ships[at % len(ships)]],
            "trade": one_of(_TRADES),
            "food": one_of(_FOODS),
            "colour": one_of(_COLOURS),
            "month": one_of(_MONTHS),
            "beast": one_of(_BEASTS),
            "metal": one_of(_METALS),
            "day": f"{random.integers(4, 20)}th",
            "number": str(random.integers(100, 10_000)),
            "hour": str(random.integers(4, 12)),
            "minute": f"{random.integers(10, 60)}",
            "word": word,
            "phone": f"{random.integers(100, 1000)}-{random.integers(1000, 10_000)}",
            "code": f"{''.join(one_of('ABCDEFGHKLMNPRSTVWX') for _ in range(3))}-{random.integers(10, 1000)}",
            "count": one_of(("three", "four", "five", "seven", "nine")),
        }
        statement, question, answer = (part.format(**said) for part in _FORMS[form])
        facts.append(Planted(statement[0].upper() + statement[1:], question, answer))
    return facts


_ENDS = re.compile(r"[.!?][\"'\u2019\u201d]?\s*$")


def with_statements(
    tokenizer: Any, text: torch.Tensor, statements: Sequence[str], tokens: int, random: np.random.Generator
) -> tuple[torch.Tensor, list[tuple[int, int]], int]:
    """`tokens` ids of a text [n], in which statements stand as paragraphs where sentences end; the tokens [first, last)
    of each; and how many ids of the text are in it. ValueError where there is too little text or no room.
    """
    paragraphs = [encode(tokenizer, f"\n\n{statement}\n\n") for statement in statements]
    used = tokens - sum(map(len, paragraphs))
    if used < tokens // 4 or len(text) < used:
        raise ValueError(f"{len(statements)} statements and {len(text)} tokens of text do not make {tokens} tokens")
    ends = [at + 1 for at in range(used - 1) if _ENDS.search(tokenizer.decode(text[at : at + 1].tolist()))]
    if len(ends) < len(paragraphs):
        ends = list(range(8, used, max(1, used // (len(paragraphs) + 1))))
    chosen = sorted(int(at) for at in random.choice(ends, len(paragraphs), replace=False))
    pieces, spans, at, length = [], [], 0, 0
    for place, paragraph in zip(chosen, paragraphs, strict=True):
        pieces += [text[at:place], paragraph]
        length += place - at
        spans.append((length, length + len(paragraph)))
        length += len(paragraph)
        at = place
    pieces.append(text[at:used])
    return torch.cat(pieces), spans, used
