"""RULER's eleven tasks that need no download (Hsieh et al. 2024, arXiv 2404.06654), in our own words.

The filler is books. The needles of many questions share one haystack and are each other's distractors. Where RULER's
whole context is a list or noise, it is a document of its own among the books, so that one reading serves all tasks.
tasks/draw.py says how long it is.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Callable
from typing import ClassVar, Literal

from everlong_lab.corpora import words
from everlong_lab.corpora.patterns import LONG_NUMBER, NUMBER, UUID
from everlong_lab.corpora.tasks.draw import Draw, own_tokens, table_tokens
from everlong_lab.corpora.tasks.question import Document, Question, Task

_NOISE = "The wind is cold. The road is long. The night is quiet. We walk on. Round the hill and home again."
_MAGIC_DIGITS = 7
_LIST_TOKENS = 1_024  # length of a list with ten words three times and five times as many others

Value = Literal["number", "uuid"]


def _value(kind: Value, draw: Draw) -> str:
    return draw.number(_MAGIC_DIGITS) if kind == "number" else draw.uuid()


def _pattern(kind: Value) -> str:
    return NUMBER if kind == "number" else UUID


def _room(kind: Value, key: Value | None = None) -> int:
    """Return the tokens of an answer in a sentence that says the key again. `key` is given where the key is a value."""
    return (32 if kind == "number" else 60) + (40 if key == "uuid" else 0)


def _magic(kind: Value, key: str, value: str) -> str:
    return f"The special magic {kind} for {key} is {value}."


def _what_is(kind: Value, key: str) -> str:
    return f"What is the special magic {kind} for {key}?"


@dataclasses.dataclass(frozen=True)
class NiahSingleNoise(Task):
    """One needle in noise that repeats itself."""

    name: ClassVar[str] = "niah_single_1"

    def question(self, length: int, draw: Draw) -> Question:
        key, value = draw.thing(), draw.number(_MAGIC_DIGITS)
        needle = _magic("number", key, value)
        lines = draw.fill(own_tokens(length), itertools.repeat(_NOISE), " ")
        lines.insert(draw.rng.randrange(len(lines) + 1), needle)
        return Question(
            text=_what_is("number", key),
            answers=(value,),
            candidates=NUMBER,
            max_new_tokens=_room("number"),
            documents=(Document(f"noise of {key}", " ".join(lines)),),
            evidence=(needle,),
        )


@dataclasses.dataclass(frozen=True)
class NiahSingleBook(Task):
    """One needle in books, a number."""

    name: ClassVar[str] = "niah_single_2"
    value: ClassVar[Value] = "number"
    others: ClassVar[int] = 0  # needles of the same kind that are planted for each question and never asked for

    def question(self, length: int, draw: Draw) -> Question:
        keys = [draw.thing() for _ in range(1 + self.others)]
        values = [_value(self.value, draw) for _ in keys]
        stated = [_magic(self.value, key, value) for key, value in zip(keys, values, strict=True)]
        return Question(
            text=_what_is(self.value, keys[0]),
            answers=(values[0],),
            candidates=_pattern(self.value),
            max_new_tokens=_room(self.value),
            statements=(stated[0],),
            distractors=tuple(stated[1:]),
        )


@dataclasses.dataclass(frozen=True)
class NiahSingleUuid(NiahSingleBook):
    """One needle in books, a UUID."""

    name: ClassVar[str] = "niah_single_3"
    value: ClassVar[Value] = "uuid"


@dataclasses.dataclass(frozen=True)
class NiahMultikey(NiahSingleBook):
    """Four needles in books; one is asked for."""

    name: ClassVar[str] = "niah_multikey_1"
    others: ClassVar[int] = 3


@dataclasses.dataclass(frozen=True)
class NiahMultikeyLines(Task):
    """A text of needles only, one line a key; all questions ask about the same text."""

    name: ClassVar[str] = "niah_multikey_2"
    value: ClassVar[Value] = "number"

    def questions(self, count: int, length: int, draw: Draw) -> list[Question]:
        key: Callable[[], str] = draw.thing if self.value == "number" else draw.uuid
        pairs = ((key(), _value(self.value, draw)) for _ in itertools.count())
        lines: list[tuple[str, str]] = []  # key, value

        def sentences() -> collections.abc.Iterator[str]:
            for name, value in pairs:
                lines.append((name, value))
                yield _magic(self.value, name, value)

        text = draw.fill(table_tokens(length), sentences())
        while len(text) < count:
            text += draw.fill(1, sentences())
        document = Document(f"{self.value}s of {lines[0][0]}", "\n".join(text))
        return [
            Question(
                text=_what_is(self.value, name),
                answers=(value,),
                candidates=_pattern(self.value),
                max_new_tokens=_room(self.value, self.value),
                documents=(document,),
                evidence=(_magic(self.value, name, value),),
            )
            for name, value in draw.rng.sample(lines, count)
        ]


@dataclasses.dataclass(frozen=True)
class NiahMultikeyUuids(NiahMultikeyLines):
    """A text of needles only, UUIDs with UUIDs as keys."""

    name: ClassVar[str] = "niah_multikey_3"
    value: ClassVar[Value] = "uuid"


@dataclasses.dataclass(frozen=True)
class NiahMultivalue(Task):
    """One key with four values; all of them are asked for."""

    name: ClassVar[str] = "niah_multivalue"
    values: int = 4

    def question(self, length: int, draw: Draw) -> Question:
        key = draw.thing()
        values = tuple(draw.number(_MAGIC_DIGITS) for _ in range(self.values))
        return Question(
            text=f"What are all the special magic numbers for {key}? There are {self.values}.",
            answers=values,
            candidates=LONG_NUMBER,
            max_new_tokens=72,
            statements=tuple(f"One of the special magic numbers for {key} is {value}." for value in values),
        )


@dataclasses.dataclass(frozen=True)
class NiahMultiquery(Task):
    """Four keys asked for in one question."""

    name: ClassVar[str] = "niah_multiquery"
    keys: int = 4

    def question(self, length: int, draw: Draw) -> Question:
        keys = [draw.thing() for _ in range(self.keys)]
        values = tuple(draw.number(_MAGIC_DIGITS) for _ in keys)
        return Question(
            text=f"What are the special magic numbers for {', '.join(keys[:-1])} and {keys[-1]}?",
            answers=values,
            candidates=LONG_NUMBER,
            max_new_tokens=96,
            statements=tuple(_magic("number", key, value) for key, value in zip(keys, values, strict=True)),
        )


@dataclasses.dataclass(frozen=True)
class VariableTracking(Task):
    """A chain of assignments. Which variables have the value at its beginning?"""

    name: ClassVar[str] = "vt"
    hops: int = 4

    def question(self, length: int, draw: Draw) -> Question:
        value = draw.number(5)
        names = [draw.variable() for _ in range(self.hops + 1)]
        chain = [f"VAR {names[0]} = {value}."]
        chain += [f"VAR {after} = VAR {before}." for before, after in itertools.pairwise(names)]
        return Question(
            text=f"Which {len(names)} variables are assigned the value {value}, directly or through another variable?",
            answers=tuple(names),
            candidates=r"\b(?-i:[A-Z]{5})\b",
            max_new_tokens=48,
            statements=tuple(chain),
        )


@dataclasses.dataclass(frozen=True)
class CommonWords(Task):
    """A numbered list of words. Most come once or twice, ten come more often: which are they?"""

    name: ClassVar[str] = "cwe"
    common: int = 10
    repeats: int = 3  # least number of times that a common word comes
    rare: int = 5  # other words in the list for each of the common ones, so that its head is no answer

    def question(self, length: int, draw: Draw) -> Question:
        every = words.NOUNS + words.ADJECTIVES + words.VERBS
        vocabulary = draw.rng.sample(every, len(every))
        common, rare = vocabulary[: self.common], vocabulary[self.common :]
        tokens = max(own_tokens(length), min(_LIST_TOKENS, length // 8))
        total = len(draw.fill(tokens, (f"{n}. {rare[n % len(rare)]}" for n in itertools.count(1))))
        repeats = max(self.repeats, total // ((1 + self.rare) * self.common))
        listed = common * repeats + [rare[n % len(rare)] for n in range(total - self.common * repeats)]
        draw.rng.shuffle(listed)
        name = f"word list {draw.number(4)}"
        text = f"This is {name}.\n" + "\n".join(f"{n}. {word}" for n, word in enumerate(listed, 1))
        return Question(
            text=f"What are the {self.common} most common words in {name}?",
            answers=tuple(common),
            candidates=rf"\b(?:{'|'.join(vocabulary)})\b",
            max_new_tokens=64,
            documents=(Document(name, text),),
            sources=(name,),
        )


@dataclasses.dataclass(frozen=True)
class FrequentWords(Task):
    """A coded text whose words are as frequent as rank to the power -2. Which are the three most frequent?"""

    name: ClassVar[str] = "fwe"
    asked: int = 3
    alpha: float = 2.0
    different: int = 20

    def question(self, length: int, draw: Draw) -> Question:
        vocabulary = [draw.code_word() for _ in range(self.different)]
        total = len(draw.fill(own_tokens(length), itertools.cycle(vocabulary), " "))
        shares = [rank**-self.alpha for rank in range(1, self.different + 1)]
        # The first ranks differ in every text, however short, so that no tie decides.
        counts = [max(1, round(total * share / sum(shares))) for share in shares]
        for rank in range(self.asked - 1, -1, -1):
            counts[rank] = max(counts[rank], counts[rank + 1] + 1)
        text = [word for word, times in zip(vocabulary, counts, strict=True) for _ in range(times)]
        draw.rng.shuffle(text)
        name = f"coded text {draw.number(4)}"
        return Question(
            text=f"What are the {self.asked} most frequent words in {name}?",
            answers=tuple(vocabulary[: self.asked]),
            candidates=rf"\b(?:{'|'.join(vocabulary)})\b",
            max_new_tokens=40,
            documents=(Document(name, f"This is {name}. " + " ".join(text)),),
            sources=(name,),
        )


TASKS = (
    NiahSingleNoise(),
    NiahSingleBook(),
    NiahSingleUuid(),
    NiahMultikey(),
    NiahMultikeyLines(),
    NiahMultikeyUuids(),
    NiahMultivalue(),
    NiahMultiquery(),
    VariableTracking(),
    CommonWords(),
    FrequentWords(),
)
