"""What makers of texts make: a text as token ids, the questions about it, the tokens that answer, and its origin."""

from __future__ import annotations

import dataclasses

import torch

from everlong_lab.corpora.blocks import BLOCK_TOKENS, SINK_TOKENS
from everlong_lab.corpora.pairs import Split

Span = tuple[int, int]  # tokens [first, last) of a text


@dataclasses.dataclass(frozen=True)
class Question:
    words: str
    answers: tuple[str, ...] = ()  # the right answers, whether the text gives them or not
    spans: tuple[Span, ...] = ()  # what answers it, in the order in which it leads on; none where nothing does
    kind: str = ""  # what the text is to it, in its maker's words
    reasons: tuple[str, ...] = ()  # for each of the maker's kinds, why the text would be of it


@dataclasses.dataclass(frozen=True)
class Record:
    """A text to learn from or to measure by. A stream begins with SINK_TOKENS tokens that are in none of its blocks."""

    name: str
    origin: str  # the kind of text that it was made of, in its maker's words
    split: Split
    ids: torch.Tensor  # int64 [n]
    questions: tuple[Question, ...] = ()

    @property
    def blocks(self) -> int:
        """The number of whole blocks of a stream."""
        return (len(self.ids) - SINK_TOKENS) // BLOCK_TOKENS

    def behind(self, blocks: int) -> torch.Tensor:
        """Return int64 ids: the newest token of the first `blocks` blocks, and all that follows them."""
        return self.ids[SINK_TOKENS + blocks * BLOCK_TOKENS - 1 :]


def block_of(question: Question) -> int:
    """Return the block of a stream that has the first answering span. The sinks count to the first block."""
    return max(0, question.spans[0][0] - SINK_TOKENS) // BLOCK_TOKENS


def moved(spans: tuple[Span, ...] | list[Span], tokens: int) -> tuple[Span, ...]:
    """Return the same spans, `tokens` tokens later."""
    return tuple((first + tokens, last + tokens) for first, last in spans)
