"""Text retrieval, as a user would build it instead: passages are found, put into the prompt and read anew."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from everlong.eval.baselines.base import Baseline, Reading, Reply, chosen_texts, generation_of
from everlong.eval.gold import answer_from_passage
from everlong.eval.haystack import Part
from everlong.eval.plan import Asked


@dataclasses.dataclass(frozen=True)
class Passage:
    text: str
    begin: int  # tokens of the stream
    end: int
    part: int  # index of the text that it is of


def cut_passages(texts: Sequence[Part], tokens: int) -> list[Passage]:
    """Passages of `tokens` tokens, each overlapping the one before it by a third of that."""
    step = max(1, tokens - tokens // 3)
    passages = []
    for number, part in enumerate(texts):
        for first in range(0, max(1, len(part.offsets) - tokens + step), step):
            last = min(first + tokens, len(part.offsets))
            text = part.text[int(part.offsets[first, 0]) : int(part.offsets[last - 1, 1])]
            passages.append(Passage(text, part.begin + first, part.begin + last, number))
    return passages


@dataclasses.dataclass
class PassageRetrieval(Baseline):
    """Passages as long as one group of pages of everlong's, as many of them, the best one last."""

    passages: int | None = None  # as many as everlong recalls groups

    def prepare(self, reading: Reading) -> None:
        self._reading = reading
        self._passages = cut_passages(reading.texts, reading.passage_tokens)
        self._count = self.passages if self.passages is not None else reading.mm.config.groups
        self.index([passage.text for passage in self._passages])

    def answer(self, asked: Asked) -> Reply:
        question, reading = asked.question, self._reading
        allowed = set(chosen_texts(reading.texts, question))
        found: list[Passage] = []
        for index in np.argsort(-self.scores(question.text), kind="stable"):
            passage = self._passages[index]
            overlaps = any(passage.begin < other.end and other.begin < passage.end for other in found)
            if passage.part in allowed and not overlaps:
                found.append(passage)
            if len(found) == self._count:
                break
        context = "\n\n".join(passage.text.strip() for passage in reversed(found))
        generation = generation_of(question, reading.tokenizer)
        text = answer_from_passage(reading.model, reading.tokenizer, context, question.text, **generation)
        return Reply(text, tuple((passage.begin, passage.end) for passage in found))

    def held_bytes(self) -> int:
        return sum(len(part.text.encode()) for part in self._reading.texts) + self.index_bytes()

    @abc.abstractmethod
    def index(self, passages: Sequence[str]) -> None:
        """Make the index of the passages."""

    @abc.abstractmethod
    def scores(self, question: str) -> npt.NDArray[np.float64]:
        """[passages]: how well each fits."""

    @abc.abstractmethod
    def index_bytes(self) -> int: ...
