"""A question of a published benchmark: what is read for it, what is asked, and how a reply is scored."""

from __future__ import annotations

import collections
import dataclasses
import re
from typing import Literal

from everlong.text.words import states

# "choice": the letter of the right option. "all": the share of the answers that a reply states. "any": whether it
# states one. "words": how many words it has in common with the best answer, as F1.
Scoring = Literal["choice", "all", "any", "words"]

_SAID = re.compile(r"\b(?:answer|option|choice)\s*(?:is|:)?\s*\(?([A-J])\b", re.IGNORECASE)
_LETTER = re.compile(r"(?<![A-Za-z])\(?([A-J])\)?(?![A-Za-z'])")
_WORD = re.compile(r"\w+")


@dataclasses.dataclass(frozen=True)
class Text:
    """What is read into the memory."""

    text: str
    source: str
    happened: str | None = None  # ISO 8601


@dataclasses.dataclass(frozen=True)
class Example:
    """A question. Those of one text stand one after the other, and have one tuple of `texts`."""

    id: str
    task: str
    texts: tuple[Text, ...]
    question: str
    answers: tuple[str, ...]
    scoring: Scoring
    max_new_tokens: int = 64
    evidence: tuple[str, ...] = ()  # sources of the texts that together answer it, where the benchmark names them

    def is_right(self, reply: str) -> bool:
        """Return whether a reply states one of the answers."""
        return any(states(reply, answer) for answer in self.answers)

    def score(self, reply: str) -> float:
        """Return 0 to 1."""
        if self.scoring == "choice":
            return float(chosen(reply) == self.answers[0])
        if self.scoring == "words":
            return max(shared_words(reply, answer) for answer in self.answers)
        stated = [states(reply, answer) for answer in self.answers]
        return sum(stated) / len(stated) if self.scoring == "all" else float(any(stated))


def chosen(reply: str) -> str:
    """Return the letter that a reply chooses: behind "answer is", else the first that stands alone; "" for none."""
    found = _SAID.search(reply) or _LETTER.search(reply)
    return "" if found is None else found[1].upper()


def shared_words(reply: str, answer: str) -> float:
    """Return the F1 of a reply's words with an answer's."""
    values, right = (_WORD.findall(text.lower()) for text in (reply, answer))
    common = sum((collections.Counter(values) & collections.Counter(right)).values())
    return 2 * common / (len(values) + len(right)) if common else 0.0
