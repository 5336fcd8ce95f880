"""Facts that only answer together, scattered over books, in the manner of BABILong (Kuratov et al. 2024, 2406.10149).

People go from room to room and take things with them. Only the text says who carries a thing, and which of several
moves was the last. Every question has a person and a thing of its own, so that the stories of one haystack do not mix.
For each, the story of another person is planted too. Moves follow each other in the order in which they are read.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from everlong_lab.corpora.tasks.draw import Draw
from everlong_lab.corpora.tasks.question import Question, Task

PLACES = (
    "bathroom",
    "bedroom",
    "cellar",
    "garage",
    "garden",
    "hallway",
    "kitchen",
    "library",
    "office",
    "stable",
    "studio",
    "workshop",
)
_CANDIDATES = rf"\b(?:{'|'.join(PLACES)})\b"
_ROOM = 24


def _went(person: str, place: str) -> str:
    return f"{person} went to the {place}."


def _took(person: str, thing: str) -> str:
    return f"{person} picked up the {thing}."


def _other_story(draw: Draw) -> tuple[str, ...]:
    """Return the story of another person with another thing, in any of the rooms."""
    person = draw.person()
    return _took(person, draw.thing()), *(_went(person, place) for place in draw.rng.sample(PLACES, 2))


@dataclasses.dataclass(frozen=True)
class OneFact(Task):
    """Where is a person who went from room to room? The last move answers."""

    name: ClassVar[str] = "babi_1"
    moves: int = 3

    def question(self, length: int, draw: Draw) -> Question:
        person = draw.person()
        places = draw.rng.sample(PLACES, self.moves)
        moves = tuple(_went(person, place) for place in places)
        return Question(
            text=f"Where is {person}?",
            answers=(places[-1],),
            candidates=_CANDIDATES,
            max_new_tokens=_ROOM,
            statements=moves,
            distractors=_other_story(draw),
            evidence=(moves[-1],),
        )


@dataclasses.dataclass(frozen=True)
class TwoFacts(Task):
    """Where is a thing? The person who picked it up and that person's last move answer together."""

    name: ClassVar[str] = "babi_2"

    def question(self, length: int, draw: Draw) -> Question:
        person, thing = draw.person(), draw.thing()
        places = draw.rng.sample(PLACES, 3)
        before, *after = (_went(person, place) for place in places)
        taken = _took(person, thing)
        return Question(
            text=f"Where is the {thing}?",
            answers=(places[-1],),
            candidates=_CANDIDATES,
            max_new_tokens=_ROOM,
            statements=(before, taken, *after),
            distractors=_other_story(draw),
            evidence=(taken, after[-1]),
        )


@dataclasses.dataclass(frozen=True)
class ThreeFacts(Task):
    """Where was a thing before a room? The person who picked it up and the order of two moves answer together."""

    name: ClassVar[str] = "babi_3"

    def question(self, length: int, draw: Draw) -> Question:
        person, thing = draw.person(), draw.thing()
        places = draw.rng.sample(PLACES, 4)
        before, *after = (_went(person, place) for place in places)
        taken = _took(person, thing)
        later = draw.rng.choice((2, 3))  # the move that is named: the second or the third with the thing
        return Question(
            text=f"Where was the {thing} before the {places[later]}?",
            answers=(places[later - 1],),
            # "before the kitchen" repeats the question; the kitchen said alone is a guess like any other room.
            candidates=rf"(?<!before the ){_CANDIDATES}",
            max_new_tokens=_ROOM,
            statements=(before, taken, *after),
            distractors=_other_story(draw),
            evidence=(taken, after[later - 2], after[later - 1]),
        )


TASKS = (OneFact(), TwoFacts(), ThreeFacts())
