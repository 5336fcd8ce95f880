"""Facts to plant in a haystack: what is stated, what is asked, and what counts as the right answer.

Many facts of a kind stand in one haystack, so every fact has a key of its own and its question names it. Where a reply
lists several candidates, only the first one counts: an answer among guesses is none. Candidates are numbers, UUIDs and
cities, or the answers of the same kind that are planted with a fact.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, TypeVar, get_args

from everlong.text.words import place_of
from everlong_lab.corpora import words
from everlong_lab.corpora.paraphrases import ASSOCIATED, PARAPHRASED
from everlong_lab.corpora.patterns import NUMBER, UUID
from everlong_lab.corpora.seeds import picks

T = TypeVar("T")
# Facts of the last two kinds are taken from fixed lists (everlong_lab.corpora.paraphrases); the others are made up.
Kind = Literal["pass-key", "uuid", "name", "best-thing", "quote", "paraphrase", "association"]
KINDS: tuple[Kind, ...] = get_args(Kind)[:-2]
# Kinds that SmolLM2-135M answers most surely with the fact in front of it.
DEFAULT_KINDS: tuple[Kind, ...] = ("pass-key", "uuid", "name")

_NUMBER = re.compile(NUMBER)
_UUID = re.compile(UUID, re.IGNORECASE)
_CITY = re.compile(r"\b(" + "|".join(words.CITIES) + r")\b", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Fact:
    kind: Kind
    key: str  # what the question names
    statement: str  # a paragraph of its own
    question: str
    answer: str
    max_new_tokens: int  # room for the answer in a whole sentence
    # Answers of the same kind that are planted with it: a reply that gives one of them first is a guess. Numbers, UUIDs
    # and cities are known by their form instead.
    planted: tuple[str, ...] = dataclasses.field(default=(), compare=False, repr=False)

    def accept(self, reply: str) -> bool:
        """Return whether a reply gives this fact's answer."""
        if self.kind == "pass-key":
            return _first(_NUMBER, reply).replace(",", "") == self.answer
        if self.kind == "uuid":
            return _first(_UUID, reply) == self.answer
        if self.kind == "name":
            return _first(_CITY, reply.replace(self.key, "")) == self.answer.lower()
        place = place_of(self.answer, reply)
        return place >= 0 and not any(0 <= place_of(other, reply) < place for other in self._guesses())

    def _guesses(self) -> Iterable[str]:
        """Return the other planted answers, without those that its own text names: repeating that text is no guess."""
        own = f"{self.statement} {self.question} {self.answer}"
        return (other for other in self.planted if place_of(other, own) < 0)


def plant_jointly(facts: Iterable[Fact]) -> tuple[Fact, ...]:
    """Return the same facts, each with the answers of all facts of its kind."""
    listed = tuple(facts)
    answers = {kind: tuple(fact.answer for fact in listed if fact.kind == kind) for kind in {f.kind for f in listed}}
    return tuple(dataclasses.replace(fact, planted=answers[fact.kind]) for fact in listed)


def _first(pattern: re.Pattern[str], reply: str) -> str:
    match = pattern.search(reply)
    return match.group(0).lower() if match else ""


def paraphrased(statement: str, question: str, answer: str, kind: Kind = "paraphrase") -> Fact:
    """Return a fact that is asked for in other words; its key is its answer."""
    return Fact(kind=kind, key=answer, statement=statement, question=question, answer=answer, max_new_tokens=32)


PARAPHRASES: tuple[Fact, ...] = plant_jointly(paraphrased(*told) for told in PARAPHRASED)
ASSOCIATIONS: tuple[Fact, ...] = plant_jointly(paraphrased(*told, kind="association") for told in ASSOCIATED)


def make_facts(kinds: Sequence[Kind], per_kind: int, seed: int = 0) -> list[Fact]:
    """Return `per_kind` facts of every kind, kind after kind. All keys are distinct; the same seed gives the same
    facts.

    Words are not shared between keys while the lists last. Raises ValueError when a kind runs out of keys.
    """
    draw = _Draw(picks(seed, "facts"))
    for kind in kinds:
        if kind not in get_args(Kind):
            raise ValueError(f"no fact kind {kind!r}; there are {', '.join(get_args(Kind))}")
    facts = []
    for kind in kinds:
        for number in range(per_kind):
            try:
                facts.append(draw.fact(kind))
            except StopIteration:
                raise ValueError(f"only {number} facts of kind {kind!r} have distinct keys") from None
    return list(plant_jointly(facts))


# For kinds with a drawn key and answer: what is stated, what is asked, and the tokens that an answer may take.
_FORMS: dict[Kind, tuple[str, str, int]] = {
    "pass-key": ("The pass key for the {key} is {answer}.", "What is the pass key for the {key}?", 24),
    "uuid": (
        "The UUID of the {key} is {answer}. Remember it: {answer} is the UUID of the {key}.",
        "What is the UUID of the {key}?",
        56,
    ),
    "name": ("The home city of {key} is {answer}.", "What is the home city of {key}?", 24),
    "best-thing": ("The best thing to do in {key} is to {answer}.", "What is the best thing to do in {key}?", 40),
    "quote": ('{key} always used to say: "{sentence}"', "What did {key} always use to say?", 40),
}
_PASTIME = (words.PASTIMES, words.SPOTS)
_SAYING = (words.SAYING_SUBJECTS, words.SAYING_VERBS, words.SAYING_OBJECTS)


def _shuffled(rng: random.Random, items: Sequence[T]) -> Iterator[T]:
    """Yield each item once; nothing is drawn before the first is wanted."""
    yield from rng.sample(items, len(items))


class _Draw:
    """The pools that keys and answers are drawn from, one after the other."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._things = words.pairs(rng, words.ADJECTIVES, words.NOUNS)
        self._people = words.pairs(rng, words.FIRST_NAMES, words.LAST_NAMES)
        cities = rng.sample(words.CITIES, len(words.CITIES))
        # A city that somebody lives in is no key of another question.
        self._visited = iter(cities[::2])
        self._homes = itertools.cycle(cities[1::2])
        self._numbers: set[str] = set()
        self._paraphrased = _shuffled(rng, PARAPHRASED)
        self._associated = _shuffled(rng, ASSOCIATED)

    def fact(self, kind: Kind) -> Fact:
        """Draw a fact. Raises StopIteration where there are no more keys."""
        if kind == "paraphrase":
            return paraphrased(*next(self._paraphrased))
        if kind == "association":
            return paraphrased(*next(self._associated), kind=kind)
        key, answer = self._key_and_answer(kind)
        statement, question, room = _FORMS[kind]
        values = {"key": key, "answer": answer, "sentence": f"{answer[0].upper()}{answer[1:]}."}
        return Fact(kind, key, statement.format(**values), question.format(**values), answer, room)

    def _key_and_answer(self, kind: Kind) -> tuple[str, str]:
        if kind == "pass-key":
            return next(self._things), self._number()
        if kind == "uuid":
            key, value = next(self._things), str(uuid.UUID(int=self._rng.getrandbits(128), version=4))
            # A small model drops a letter that its tokenizer joined to the space before it.
            return key, f"{self._rng.randrange(1, 10)}{value[1:]}"
        if kind == "name":
            return next(self._people), next(self._homes)
        of_a_city = kind == "best-thing"
        key = next(self._visited if of_a_city else self._people)
        return key, " ".join(self._rng.choice(part) for part in (_PASTIME if of_a_city else _SAYING))

    def _number(self) -> str:
        while True:
            number = str(self._rng.randrange(10_000, 100_000))
            if number not in self._numbers:
                self._numbers.add(number)
                return number
