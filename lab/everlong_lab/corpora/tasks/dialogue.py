"""Tasks about what a user said in earlier sessions. Every session is a source; months of other text lie between."""

from __future__ import annotations

import dataclasses
import datetime
from typing import ClassVar

from everlong_lab.corpora import words
from everlong_lab.corpora.tasks.draw import Draw
from everlong_lab.corpora.tasks.question import Document, Question, Task

_CITY = rf"\b(?:{'|'.join(words.CITIES)})\b"
_ROOM = 24
_FIRST_DAY = datetime.date(2026, 1, 5)
_SMALL_TALK = (
    ("Did it rain where you are?", "I cannot see the weather, but I hope it stays dry for you."),
    ("I slept badly again.", "I am sorry to hear that. A short walk in the evening may help."),
    ("How long do I boil an egg?", "Seven minutes for a soft yolk, ten for a firm one."),
    ("My neighbour is learning the trumpet.", "That takes patience on both sides of the wall."),
    ("Write me a line for a birthday card.", "May the year ahead be kind to you, and the cake too."),
    ("What is a good name for a cat?", "Something short that is easy to call across a yard."),
    ("The train was late again today.", "A good book makes that easier to bear."),
    ("Is it too late to plant tomatoes?", "In a warm place it is not; in an open field it may be."),
)


@dataclasses.dataclass(frozen=True)
class _Session:
    """One conversation of one person on one day."""

    person: str
    day: datetime.date

    @property
    def source(self) -> str:
        return f"{self.person}, {self.day.isoformat()}"

    def document(self, message: str, answer: str, draw: Draw) -> Document:
        """Return the conversation: one exchange that matters among small talk."""
        talk = draw.rng.sample(_SMALL_TALK, 4)
        talk.insert(draw.rng.randrange(1, 4), (message, answer))
        when = f"{self.day.day} {self.day:%B %Y}"
        lines = [f"Conversation with {self.person} on {when}."]
        lines += [f"{self.person}: {theirs}\nAssistant: {ours}" for theirs, ours in talk]
        return Document(self.source, "\n".join(lines))


def _days(draw: Draw, count: int) -> list[datetime.date]:
    """Return different days, ascending."""
    return [_FIRST_DAY + datetime.timedelta(day) for day in sorted(draw.rng.sample(range(300), count))]


@dataclasses.dataclass(frozen=True)
class Fact(Task):
    """A fact that was said once, in one session."""

    name: ClassVar[str] = "dialogue_fact"

    def question(self, length: int, draw: Draw) -> Question:
        person, (city,) = draw.person(), draw.cities(1)
        values = f"My sister lives in {city} now."
        session = _Session(person, _days(draw, 1)[0])
        return Question(
            text=f"In which city does the sister of {person} live?",
            answers=(city,),
            candidates=_CITY,
            max_new_tokens=_ROOM,
            documents=(session.document(values, f"How nice, {city} is worth a visit.", draw),),
            evidence=(f"{person}: {values}",),
        )


@dataclasses.dataclass(frozen=True)
class OfSession(Task):
    """Two sessions with different answers. One of them is named, and only that one is searched."""

    name: ClassVar[str] = "dialogue_session"

    def question(self, length: int, draw: Draw) -> Question:
        person, cities = draw.person(), draw.cities(2)
        sessions = [_Session(person, day) for day in _days(draw, 2)]
        values = [f"I am packing for a trip to {city}." for city in cities]
        documents = [
            session.document(line, "Have a good trip.", draw) for session, line in zip(sessions, values, strict=True)
        ]
        questions = draw.rng.randrange(2)
        return Question(
            text=f"To which city was {person} going to travel?",
            answers=(cities[questions],),
            candidates=_CITY,
            max_new_tokens=_ROOM,
            documents=tuple(documents),
            evidence=(f"{person}: {values[questions]}",),
            sources=(sessions[questions].source,),
        )


@dataclasses.dataclass(frozen=True)
class Update(Task):
    """A fact that was corrected in a later session. What holds now is asked for."""

    name: ClassVar[str] = "dialogue_update"

    def question(self, length: int, draw: Draw) -> Question:
        person, (old, new) = draw.person(), draw.cities(2)
        values = (f"My office is in {old}.", f"My office has moved to {new}.")
        documents = [
            _Session(person, day).document(line, "I will keep that in mind.", draw)
            for day, line in zip(_days(draw, 2), values, strict=True)
        ]
        return Question(
            text=f"To which city has the office of {person} moved?",
            answers=(new,),
            candidates=_CITY,
            max_new_tokens=_ROOM,
            documents=tuple(documents),
            evidence=(f"{person}: {values[1]}",),
        )


TASKS = (Fact(), OfSession(), Update())
