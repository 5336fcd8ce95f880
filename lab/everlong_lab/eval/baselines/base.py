"""What a suite compares: anything that answers a question about a text longer than the model's window."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

from everlong.config import MemoryConfig
from everlong.generation.eval_decoding import AS_MEASURED
from everlong.generation.memory_model import MemoryModel
from everlong.memory.where import EVERYWHERE, Where
from everlong_lab.corpora.haystack import GOLD_TOKENS, HaystackPiece
from everlong_lab.corpora.tasks import Question
from everlong_lab.eval.interrupts import StopWhenScored
from everlong_lab.eval.plan import PlannedRun

QUESTION_ROOM = 256  # tokens of a model's window for question and answer


@dataclasses.dataclass(frozen=True)
class ReadTexts:
    """A text that was read to some length: what a baseline may use."""

    mm: MemoryModel  # its memory and frame stand at the text's end
    texts: tuple[HaystackPiece, ...]  # all of it, in reading order
    gold_tokens: int = GOLD_TOKENS

    @property
    def model(self) -> Any:
        return self.mm.model

    @property
    def tokenizer(self) -> Any:
        return self.mm.tokenizer

    @property
    def kv_token_bytes(self) -> int:
        """Bytes of keys and values of one token in the model's own format."""
        return self.mm.frame.served.kv_token_bytes


@dataclasses.dataclass(frozen=True)
class Reply:
    text: str
    recalled: tuple[tuple[int, int], ...] = ()  # tokens of the stream that were put before the question, best first


class CannotAskError(ValueError):
    """Raised where a baseline has nothing to answer from; the message says why."""


class MissingPackageError(CannotAskError):
    """Raised where a baseline needs a package that is not installed; the message names it."""


class Baseline(abc.ABC):
    """A dataclass whose fields are its settings. It is prepared once a reading, then asked, and remembers nothing."""

    name: ClassVar[str]

    def check(self, model: Any, tokenizer: Any, config: MemoryConfig) -> None:  # noqa: B027  # most go with any
        """Raise ValueError, before anything is read, where it does not go with this model or a
        memory of this config.
        """

    def prepare(self, reading: ReadTexts) -> None:
        """Do what is done once for a text, before the first question. Raises MissingPackageError."""
        self._reading = reading

    @abc.abstractmethod
    def answer(self, run: PlannedRun) -> Reply:
        """Answer greedily, up to where the score is settled or to the question's limit (`generation_of`)."""

    @abc.abstractmethod
    def held_bytes(self) -> int:
        """Return the bytes of keys, values, text and index that stay between two questions, in RAM or on disk."""

    def release(self) -> None:
        """Let go of what `prepare` made."""
        for key in set(vars(self)) - {field.name for field in dataclasses.fields(self)}:  # type: ignore[arg-type]  # every baseline is a dataclass
            delattr(self, key)


def generation_of(question: Question, tokenizer: Any) -> dict[str, Any]:
    """Return the arguments that every baseline gives to `generate` for one answer."""
    stops = [StopWhenScored(question, tokenizer)]
    return {"max_new_tokens": question.max_new_tokens, "stopping_criteria": stops, **AS_MEASURED}


def group_tokens(config: MemoryConfig) -> int:
    """Return the tokens of one group of pages that everlong recalls; every baseline's passages have this length."""
    return (1 + 2 * config.search.neighbours) * config.archive.page_tokens


def where_of(question: Question) -> Where:
    return Where(source=question.sources) if question.sources else EVERYWHERE


def chosen_texts(texts: Sequence[HaystackPiece], question: Question) -> list[int]:
    """Return the indices of the texts that a question is about."""
    return [index for index, text in enumerate(texts) if not question.sources or text.source in question.sources]
