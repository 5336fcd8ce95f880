"""Retrieval in the manner of InfiniteBench (Zhang et al. 2024, 2402.13718): pass-key, number string, key-value."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import ClassVar

from everlong_lab.corpora.patterns import NUMBER, UUID
from everlong_lab.corpora.tasks.draw import Draw, table_tokens
from everlong_lab.corpora.tasks.question import Document, Question, Task


class _StatedNumber(Task):
    """A number that the text says twice."""

    max_new_tokens: ClassVar[int]
    subject: ClassVar[str]  # with a `key`
    statement: ClassVar[str]  # with the subject and its value

    def question(self, length: int, draw: Draw) -> Question:
        subject, value = self.subject.format(key=draw.thing()), self._value(draw)
        return Question(
            text=f"What is the {subject}?",
            answers=(value,),
            candidates=NUMBER,
            max_new_tokens=self.max_new_tokens,
            statements=(self.statement.format(subject=subject, value=value),),
        )

    def _value(self, draw: Draw) -> str:
        return draw.number(5)


@dataclasses.dataclass(frozen=True)
class PassKey(_StatedNumber):
    """A five-digit pass key."""

    name: ClassVar[str] = "passkey"
    max_new_tokens: ClassVar[int] = 24
    subject: ClassVar[str] = "pass key for the {key}"
    statement: ClassVar[str] = "The {subject} is {value}. Remember it. {value} is the pass key."


@dataclasses.dataclass(frozen=True)
class NumberString(_StatedNumber):
    """Ten digits in repeated pairs, which a model likes to shorten."""

    name: ClassVar[str] = "number_string"
    max_new_tokens: ClassVar[int] = 32
    subject: ClassVar[str] = "sequence of digits of the {key}"
    statement: ClassVar[str] = "The {subject} is {value}. Remember it: {value}."

    def _value(self, draw: Draw) -> str:
        return "".join(digit * 2 for digit in super()._value(draw))


@dataclasses.dataclass(frozen=True)
class KeyValue(Task):
    """A JSON object of UUIDs; the value of one key is asked for. All questions ask about the same object."""

    name: ClassVar[str] = "kv_retrieval"

    def questions(self, count: int, length: int, draw: Draw) -> list[Question]:
        pairs: dict[str, str] = {}

        def entries() -> Iterator[str]:
            while True:
                key, value = draw.uuid(), draw.uuid()
                pairs[key] = value
                yield _entry(key, value)

        draw.fill(table_tokens(length), entries(), ", ")
        while len(pairs) < count:
            draw.fill(1, entries())
        document = Document(f"object {next(iter(pairs))}", json.dumps(pairs))
        return [
            Question(
                text=f'What is the value of the key "{key}" in the JSON object?',
                answers=(pairs[key],),
                candidates=UUID,
                max_new_tokens=100,  # the reply may repeat the key
                documents=(document,),
                evidence=(_entry(key, pairs[key]),),
            )
            for key in draw.rng.sample(list(pairs), count)
        ]


def _entry(key: str, value: str) -> str:
    return f'"{key}": "{value}"'


TASKS = (PassKey(), NumberString(), KeyValue())
