"""Text retrieval, as a user might build it instead: passages are found, put into the prompt and read again."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from everlong.config import MemoryConfig
from everlong.models.attach import trained_window
from everlong_lab.corpora.haystack import HaystackPiece
from everlong_lab.eval.baselines.base import (
    QUESTION_ROOM,
    Baseline,
    ReadTexts,
    Reply,
    chosen_texts,
    generation_of,
    group_tokens,
)
from everlong_lab.eval.gold import answer_from_passage
from everlong_lab.eval.plan import PlannedRun

Span = tuple[int, int]  # tokens of the stream


@dataclasses.dataclass(frozen=True)
class TextWindow:
    """A piece of one text, which is scored as a whole."""

    begin: int  # tokens of the stream
    end: int
    part: int  # index of its text


def cut_windows(texts: Sequence[HaystackPiece], tokens: int) -> list[TextWindow]:
    """Cut the texts into windows of `tokens` tokens, as a memory cuts pages: a text's last window may be shorter."""
    return [
        TextWindow(first, min(first + tokens, part.end), number)
        for number, part in enumerate(texts)
        for first in range(part.begin, part.end, tokens)
    ]


def passage_around(window: TextWindow, part: HaystackPiece, tokens: int, taken: Sequence[Span]) -> Span | None:
    """Return at most `tokens` tokens of the part around the window's middle, outside of the `taken` spans.

    Returns None where these have the window's middle already.
    """
    middle = (window.begin + window.end) // 2
    if any(begin <= middle < end for begin, end in taken):
        return None
    low = max([part.begin, *(end for _, end in taken if end <= middle)])
    high = min([part.end, *(begin for begin, _ in taken if begin > middle)])
    first = max(low, min(middle - tokens // 2, high - tokens))
    return first, min(high, first + tokens)


@dataclasses.dataclass
class PassageRetrieval(Baseline):
    """Passages around the best windows, each as long as one of everlong's page groups, with the best one last."""

    passages: int | None = None  # as many as everlong recalls groups
    window: int = 64  # tokens that are scored together

    def __post_init__(self) -> None:
        for name, value in (("passages", self.passages), ("window", self.window)):
            if value is not None and value < 1:
                raise ValueError(f"{self.name}: {name} is {value}, expected at least 1")

    def check(self, model: Any, tokenizer: Any, config: MemoryConfig) -> None:
        tokens, room = group_tokens(config), trained_window(model) - QUESTION_ROOM
        count = self.count(config)
        if count * tokens > room:
            raise ValueError(
                f"{self.name}: {count} passages of {tokens} tokens and a question of {QUESTION_ROOM} do not fit "
                f"the model's window of {trained_window(model):,}; {max(0, room // tokens)} passages do"
            )

    def count(self, config: MemoryConfig) -> int:
        """Return the number of passages: no more than everlong has room for, unless a number is set."""
        if self.passages is not None:
            return self.passages
        return max(1, min(config.search.groups, config.frame.recalled_tokens // group_tokens(config)))

    def prepare(self, reading: ReadTexts) -> None:
        self._reading = reading
        self._windows = cut_windows(reading.texts, self.window)
        self.index([reading.texts[window.part].between(window.begin, window.end) for window in self._windows])

    def find(self, run: PlannedRun) -> list[Span]:
        """Return the passages for a question, best first; none overlaps another."""
        texts, config = self._reading.texts, self._reading.mm.config
        allowed = set(chosen_texts(texts, run.question))
        found: list[Span] = []
        for index in np.argsort(-self.scores(run.question.text), kind="stable"):
            window = self._windows[index]
            if len(found) == self.count(config):
                break
            if window.part in allowed:
                span = passage_around(window, texts[window.part], group_tokens(config), found)
                found += [span] if span is not None else []
        return found

    def answer(self, run: PlannedRun) -> Reply:
        question, reading = run.question, self._reading
        found = self.find(run)
        passages = [part.between(*span) for span in found for part in reading.texts if part.begin <= span[0] < part.end]
        context = "\n\n".join(passage.strip() for passage in reversed(passages))
        generation = generation_of(question, reading.tokenizer)
        text = answer_from_passage(reading.model, reading.tokenizer, context, question.text, **generation)
        return Reply(text, tuple(found))

    def held_bytes(self) -> int:
        return sum(len(part.text.encode()) for part in self._reading.texts) + self.index_bytes()

    @abc.abstractmethod
    def index(self, windows: Sequence[str]) -> None:
        """Make the index of the windows."""

    @abc.abstractmethod
    def scores(self, question: str) -> npt.NDArray[np.float64]:
        """Return [windows]: how well each fits."""

    @abc.abstractmethod
    def index_bytes(self) -> int: ...
