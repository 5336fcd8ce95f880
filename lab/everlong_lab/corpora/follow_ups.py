"""Conversations of two turns: the second question says "it", and means what the first one named."""

from __future__ import annotations

import dataclasses

from everlong_lab.corpora import words
from everlong_lab.corpora.seeds import picks

_KINDS = ("lighthouse", "mill", "bridge", "chapel", "railway station")
_SECTION = (
    "The {thing} {kind} was built in {year} on a hill near {city}. Its keeper is {keeper}, who sleeps in the small "
    "room below the roof. It is {height} metres tall, and travellers see it from far away. "
    "Its doors are painted {colour}."
)
_SAID = "The {thing} {kind} was built in {year}."
_ASKED = "When was the {thing} {kind} built?"
# Questions of a second turn, and those that ask the same alone.
_SECOND = (
    ("Who looks after it?", "Who looks after the {thing} {kind}?"),
    ("And how tall is it?", "How tall is the {thing} {kind}?"),
    ("Near which city does it stand?", "Near which city does the {thing} {kind} stand?"),
    ("What colour are its doors?", "What colour are the doors of the {thing} {kind}?"),
    ("Who is the keeper of the second one?", "Who is the keeper of the {thing} {kind}?"),
)
_COLOURS = ("red", "green", "blue", "white", "black", "yellow")


@dataclasses.dataclass(frozen=True)
class Conversation:
    """Four sections, a first question with its answer, and a second one that is about section `right`."""

    sections: tuple[str, ...]
    first: str
    said: str
    second: str
    alone: str  # asks what `second` asks, without a first turn
    right: int


def conversations(count: int, seed: int = 0) -> list[Conversation]:
    """Return `count` conversations, each about four things of its own."""
    rng = picks(seed, "follow-ups")
    things = words.pairs(rng, words.ADJECTIVES, words.NOUNS)
    made = []
    for number in range(count):
        kind = _KINDS[number // len(_SECOND) % len(_KINDS)]
        about = [
            {
                "thing": next(things), "kind": kind, "year": 1700 + rng.randrange(250), "city": city, "keeper": keeper,
                "height": rng.randrange(10, 90), "colour": colour,
            }
            for city, keeper, colour in zip(
                rng.sample(words.CITIES, 4), rng.sample(words.LAST_NAMES, 4), rng.sample(_COLOURS, 4), strict=True
            )
        ]  # fmt: skip
        right = rng.randrange(4)
        second, alone = (form.format(**about[right]) for form in _SECOND[number % len(_SECOND)])
        first = _ASKED.format(**about[right])
        if "second" in second:
            before = about[(right + 1) % 4]["thing"]
            first = f"Which {kind} is older, the {before} or the {about[right]['thing']} one?"
        sections = tuple(_SECTION.format(**one) for one in about)
        made.append(Conversation(sections, first, _SAID.format(**about[right]), second, alone, right))
    return made
