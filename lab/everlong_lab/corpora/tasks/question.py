"""A question of a suite: what is planted for it, what is asked, and what counts as a right answer."""

from __future__ import annotations

import dataclasses
import re
from typing import ClassVar

from everlong_lab.corpora.tasks.draw import Draw

_WHOLE_WORDS = re.compile(r".*\s", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Document:
    """A task's own text, read as a source beside the books. Equal ones are read once."""

    source: str
    text: str


@dataclasses.dataclass(frozen=True)
class Question:
    text: str
    answers: tuple[str, ...]
    # Regular expression of what counts as an answer in a reply. What follows a space never changes a match.
    candidates: str
    max_new_tokens: int
    statements: tuple[str, ...] = ()  # planted in the books in this order, a paragraph each
    distractors: tuple[str, ...] = ()  # planted too, and never asked for
    documents: tuple[Document, ...] = ()
    evidence: tuple[str, ...] = ()  # the statements, or parts of documents, that answer; all of them when empty
    # Sources that a user would name, and the only ones to recall from; everywhere when empty
    sources: tuple[str, ...] = ()

    def score(self, reply: str) -> float:
        """Return the share of the n answers that are among the reply's first n different candidates.

        So an answer among guesses is none. A candidate that the question itself names is passed over: repeating the
        question is no answer.
        """
        first = set(self._parsed_reply(reply)[: len(self.answers)])
        return len(first & {_plain(answer) for answer in self.answers}) / len(self.answers)

    def settled(self, reply: str) -> bool:
        """Return whether the score of a reply that begins so is known, as its first n candidates are complete."""
        words = _WHOLE_WORDS.match(reply)
        return words is not None and len(self._parsed_reply(words.group(0))) >= len(self.answers)

    def _parsed_reply(self, reply: str) -> list[str]:
        named = set(_candidates(self.candidates, self.text))
        return [found for found in _candidates(self.candidates, reply) if found not in named]


class Task:
    """A generator of questions: a frozen dataclass whose fields are its settings."""

    name: ClassVar[str]

    def questions(self, count: int, length: int, draw: Draw) -> list[Question]:
        """Return `count` questions for a text of `length` tokens; the same state of `draw` gives the same questions."""
        return [self.question(length, draw) for _ in range(count)]

    def question(self, length: int, draw: Draw) -> Question:
        """Return one question, for a task whose questions have nothing in common."""
        raise NotImplementedError


def _candidates(pattern: str, text: str) -> list[str]:
    """Return every different match, in order."""
    return list(dict.fromkeys(_plain(match.group(0)) for match in re.finditer(pattern, text, re.IGNORECASE)))


def _plain(text: str) -> str:
    return text.lower().replace(",", "")
