"""Facts that a later text replaces, and like facts that it does not, each with a question and its answer."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import Literal

from everlong_lab.corpora import words
from everlong_lab.corpora.seeds import picks

Standing = Literal["superseded", "two things", "alone"]


@dataclasses.dataclass(frozen=True)
class SupersededFact:
    """Statements in the order in which they are told, a question, and the values of the right and the wrong one."""

    standing: Standing
    statements: tuple[str, ...]
    question: str
    answer: str
    wrong: str  # "" where there is one statement


# What is told first, what is told later, what is asked. Values are drawn.
_FORMS = (
    ("The budget of the {thing} project is {n} crowns.", "The budget of the {thing} project is now {n} crowns.",
     "What is the budget of the {thing} project?", "number"),
    ("The budget for the {thing} survey was set at {n} crowns.", "The budget for the {thing} survey is now {n} crowns.",
     "What is the budget for the {thing} survey?", "number"),
    ("The {thing} committee meets on {n} at noon.", "The meeting of the {thing} committee has been moved to {n}.",
     "When does the {thing} committee meet?", "day"),
    ("The keeper of the {thing} store is {n}.", "The keeper of the {thing} store is {n} since the autumn.",
     "Who is the keeper of the {thing} store?", "name"),
    ("The {thing} office moved to {n} in the spring.", "The {thing} office has moved again, to {n}.",
     "Where is the {thing} office?", "city"),
    ("The deadline of the {thing} report is {n} May.", "The deadline of the {thing} report was put off to {n} June.",
     "When is the deadline of the {thing} report?", "date"),
    ("The {thing} parts are sold for {n} crowns.", "From this week on the {thing} parts are sold for {n} crowns.",
     "What are the {thing} parts sold for?", "number"),
    ("The {thing} server runs release {n}.", "The {thing} server was upgraded and runs release {n}.",
     "Which release does the {thing} server run?", "release"),
)  # fmt: skip
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")


def superseded_facts(count: int, seed: int = 0) -> list[SupersededFact]:
    """Return `count` facts: half superseded, a quarter of like facts about two things, a quarter told once.

    All are about things of their own. Of like facts either one is asked for.
    """
    rng = picks(seed, "superseded")
    things = words.pairs(rng, words.ADJECTIVES, words.NOUNS)
    facts = []
    for number in range(count):
        first, later, questions, kind = _FORMS[number % len(_FORMS)]
        thing = next(things)
        other = f"{thing.split()[0]} {next(things).split()[1]}"
        old, new = _values(rng, kind)
        if number % 2 == (number // len(_FORMS)) % 2:
            told = (first.format(thing=thing, n=old), later.format(thing=thing, n=new))
            facts.append(SupersededFact("superseded", told, questions.format(thing=thing), new, old))
        elif number % 4 < 2:
            pair = [first.format(thing=thing, n=old), rng.choice((first, later)).format(thing=other, n=new)]
            rng.shuffle(pair)
            facts.append(SupersededFact("two things", tuple(pair), questions.format(thing=thing), old, new))
        else:
            facts.append(
                SupersededFact("alone", (first.format(thing=thing, n=old),), questions.format(thing=thing), old, "")
            )
    return facts


def _values(rng: random.Random, kind: str) -> Sequence[str]:
    if kind == "number":
        return [f"{value},{rng.choice(('000', '500'))}" for value in rng.sample(range(11, 99), 2)]
    if kind == "release":
        return [f"{value}.{rng.randrange(10)}.{rng.randrange(10)}" for value in rng.sample(range(1, 12), 2)]
    if kind == "name":
        firsts, lasts = rng.sample(words.FIRST_NAMES, 2), rng.sample(words.LAST_NAMES, 2)
        return [f"{first} {last}" for first, last in zip(firsts, lasts, strict=True)]
    if kind == "date":
        return list(map(str, rng.sample(range(1, 29), 2)))
    return rng.sample(_DAYS if kind == "day" else words.CITIES, 2)
