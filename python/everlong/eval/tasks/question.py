"""A question of a suite: what is planted for it, what is asked, and what counts as a right answer."""

from __future__ import annotations

import dataclasses
import re
from typing import ClassVar, Protocol

from everlong.eval.tasks.draw import Draw


@dataclasses.dataclass(frozen=True)
class Document:
    """A text of a task's own, read as a source beside the books. Equal ones are read once."""

    source: str
    text: str


@dataclasses.dataclass(frozen=True)
class Question:
    text: str
    answers: tuple[str, ...]
    candidates: str  # regular expression: what in a reply is taken for an answer
    max_new_tokens: int
    statements: tuple[str, ...] = ()  # planted in the books in this order, a paragraph each
    distractors: tuple[str, ...] = ()  # planted too, and never asked for
    documents: tuple[Document, ...] = ()
    evidence: tuple[str, ...] = ()  # what in the documents answers; the whole documents when empty
    sources: tuple[str, ...] = ()  # a user would name them: recalled from these alone; everywhere when empty

    @property
    def graded(self) -> bool:
        """Whether a reply may be right in part."""
        return len(self.answers) > 1

    def score(self, reply: str) -> float:
        """The share of the n answers that is among the reply's first n different candidates.

        So an answer among guesses is none. A candidate that the question names itself is passed over: repeating the
        question is no answer.
        """
        named = set(_candidates(self.candidates, self.text))
        given = [found for found in _candidates(self.candidates, reply) if found not in named]
        first = set(given[: len(self.answers)])
        return len(first & {_plain(answer) for answer in self.answers}) / len(self.answers)


class Task(Protocol):
    """A generator of questions: a frozen dataclass whose fields are its settings."""

    name: ClassVar[str]
    family: ClassVar[str]

    def questions(self, count: int, length: int, draw: Draw) -> list[Question]:
        """`count` questions for a text of `length` tokens; the same for the same state of `draw`."""
        ...


def _candidates(pattern: str, text: str) -> list[str]:
    """Every different match, in order."""
    return list(dict.fromkeys(_plain(match.group(0)) for match in re.finditer(pattern, text, re.IGNORECASE)))


def _plain(text: str) -> str:
    return text.lower().replace(",", "")
