"""What makers of texts make: a text as token ids, what is asked about it, which tokens answer, where it came from."""

from __future__ import annotations

import dataclasses

import torch

from everlong.corpora.blocks import BLOCK_TOKENS, SINK_TOKENS
from everlong.corpora.pairs import Split

Span = tuple[int, int]  # tokens [first, last) of a text


@dataclasses.dataclass(frozen=True)
class Question:
    words: str
    answers: tuple[str, ...] = ()  # what is right, whether the text says it or not
    spans: tuple[Span, ...] = ()  # what answers it, in the order in which it leads on; none where nothing does
    kind: str = ""  # what the text is to it, in its maker's words
    reasons: tuple[str, ...] = ()  # why the text would be of each of the maker's kinds


@dataclasses.dataclass(frozen=True)
class Record:
    """A text to learn from or to measure by. A stream begins with SINK_TOKENS tokens that are none of its blocks'."""

    name: str
    origin: str  # the kind of text that it was made of, in its maker's words
    split: Split
    ids: torch.Tensor  # int64 [n]
    questions: tuple[Question, ...] = ()

    @property
    def blocks(self) -> int:
        """Whole ones of a stream."""
        return (len(self.ids) - SINK_TOKENS) // BLOCK_TOKENS

    def behind(self, blocks: int) -> torch.Tensor:
        """Int64: the newest token of so many blocks, and all that follows them."""
        return self.ids[SINK_TOKENS + blocks * BLOCK_TOKENS - 1 :]


def block_of(question: Question) -> int:
    """Of a stream, which has the first of what answers it. What stands among the sinks belongs to the first block."""
    return max(0, question.spans[0][0] - SINK_TOKENS) // BLOCK_TOKENS


def moved(spans: tuple[Span, ...] | list[Span], tokens: int) -> tuple[Span, ...]:
    """The same behind so many tokens more."""
    return tuple((first + tokens, last + tokens) for first, last in spans)
