"""Facts that only answer together, scattered over books, in the manner of BABILong (Kuratov et al. 2024, 2406.10149).

Every question has a person and a thing of its own, so that the stories of one haystack do not mix.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from everlong.eval.tasks.draw import Draw
from everlong.eval.tasks.question import Question

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


@dataclasses.dataclass(frozen=True)
class OneFact:
    """Where is a person, who went to one place?"""

    name: ClassVar[str] = "babi_1"
    family: ClassVar[str] = "babi"

    def questions(self, count: int, length: int, draw: Draw) -> list[Question]:
        return [self._question(draw) for _ in range(count)]

    def _question(self, draw: Draw) -> Question:
        person, place = draw.person(), draw.rng.choice(PLACES)
        return Question(
            text=f"To which room did {person} go?",
            answers=(place,),
            candidates=_CANDIDATES,
            max_new_tokens=_ROOM,
            statements=(f"{person} went to the {place}.",),
        )


@dataclasses.dataclass(frozen=True)
class TwoFacts:
    """Where is a thing, which a person took to a place?"""

    name: ClassVar[str] = "babi_2"
    family: ClassVar[str] = "babi"

    def questions(self, count: int, length: int, draw: Draw) -> list[Question]:
        return [self._question(draw) for _ in range(count)]

    def _question(self, draw: Draw) -> Question:
        person, thing, place = draw.person(), draw.thing(), draw.rng.choice(PLACES)
        return Question(
            text=f"{person} carries the {thing}. In which room is the {thing} now?",
            answers=(place,),
            candidates=_CANDIDATES,
            max_new_tokens=_ROOM,
            statements=(f"{person} picked up the {thing}.", f"{person} went to the {place} with all that was carried."),
        )


@dataclasses.dataclass(frozen=True)
class ThreeFacts:
    """Where was a thing before it came to where it is?"""

    name: ClassVar[str] = "babi_3"
    family: ClassVar[str] = "babi"

    def questions(self, count: int, length: int, draw: Draw) -> list[Question]:
        return [self._question(draw) for _ in range(count)]

    def _question(self, draw: Draw) -> Question:
        person, thing = draw.person(), draw.thing()
        earlier, later = draw.rng.sample(PLACES, 2)
        return Question(
            text=f"{person} carries the {thing}. In which room was the {thing} before the {later}?",
            answers=(earlier,),
            candidates=_CANDIDATES,
            max_new_tokens=_ROOM,
            statements=(
                f"{person} picked up the {thing}.",
                f"First {person} went to the {earlier} with all that was carried.",
                f"Then {person} went on to the {later} with all that was carried.",
            ),
        )


TASKS = (OneFact(), TwoFacts(), ThreeFacts())
