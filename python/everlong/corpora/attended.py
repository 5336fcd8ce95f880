"""Streams with questions about their blocks, which the Trimmer learns from: sinks, blocks, a tail."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch

from everlong.corpora.blocks import BLOCK_TOKENS, EDGE, SINK_TOKENS, questions_of_block, sinks_of, story_tokens
from everlong.corpora.pairs import Pairs, Split
from everlong.corpora.planted import draw_planted, with_statements
from everlong.data import Book
from everlong.text.encoding import encode
from everlong.text.prompt import build_prompt

_BLOCKS = 2
_TAIL_TOKENS = 384
CONTINUED_TOKENS = 128  # the last of the tail
_FACTS = 3  # of a block of a book, where there are any
_PLANTED_SHARE = 0.5  # of the blocks of books
_QUESTIONS = 6  # about a block of a story, at most


@dataclasses.dataclass(frozen=True)
class Asked:
    block: int
    prompt: torch.Tensor  # int64 [n] a question as a turn
    question: int  # first token of it in the prompt
    answer: torch.Tensor  # int64 [m]


@dataclasses.dataclass(frozen=True)
class TrimText:
    """A stream to learn from."""

    name: str
    origin: Literal["book", "story"]
    split: Split
    ids: torch.Tensor  # int64 [SINK_TOKENS + blocks * BLOCK_TOKENS + tail]
    asked: tuple[Asked, ...]

    @property
    def blocks(self) -> int:
        return (len(self.ids) - SINK_TOKENS) // BLOCK_TOKENS


def trim_texts(
    tokenizer: Any, books: Sequence[Book], pairs: Pairs | None, *, samples: int, stories: int, seed: int = 0
) -> list[TrimText]:
    """`samples` streams of books, half of whose blocks have planted facts, and of so many stories one each, mixed.

    One in eight of either is held out for fitting.
    """
    random = np.random.default_rng(seed)
    texts = list(_of_books(tokenizer, books, samples, random))
    texts += _of_stories(tokenizer, pairs, stories, random) if pairs is not None and stories > 0 else []
    return [texts[at] for at in random.permutation(len(texts))]


def _of_books(tokenizer: Any, books: Sequence[Book], count: int, random: np.random.Generator) -> Iterator[TrimText]:
    tokens = SINK_TOKENS + _BLOCKS * BLOCK_TOKENS + _TAIL_TOKENS
    order = [books[at] for at in random.permutation(len(books))]
    for number in range(count):
        book = order[number % len(order)]
        low, high = int(len(book.text) * EDGE), int(len(book.text) * (1 - EDGE)) - 8 * tokens
        at = int(random.integers(low, max(low + 1, high)))
        begin = book.text.find("\n\n", at) + 2
        text = encode(tokenizer, book.text[begin : begin + 8 * tokens])
        pieces, asked = [sinks_of(tokenizer, text)], list[Asked]()
        text = text[SINK_TOKENS:]
        for block in range(_BLOCKS):
            facts = draw_planted(random, _FACTS) if random.random() < _PLANTED_SHARE else []
            piece, _, used = with_statements(tokenizer, text, [fact.statement for fact in facts], BLOCK_TOKENS, random)
            pieces.append(piece)
            text = text[used:]
            asked += [_asked(tokenizer, block, fact.question, fact.answer) for fact in facts]
        pieces.append(text[:_TAIL_TOKENS])
        yield TrimText(
            f"{book.name} {begin}", "book", "fit" if number % 8 == 7 else "train", torch.cat(pieces), tuple(asked)
        )


def _of_stories(tokenizer: Any, pairs: Pairs, count: int, random: np.random.Generator) -> list[TrimText]:
    stories = [
        at for at, text in enumerate(pairs.texts) if text.origin == "fairytale" and text.split in ("train", "fit")
    ]
    texts: list[TrimText] = []
    for at in random.permutation(stories):
        if len(texts) == count:
            break
        ids, spans = story_tokens(tokenizer, pairs.texts[at].pieces)
        blocks = (len(ids) - SINK_TOKENS - CONTINUED_TOKENS) // BLOCK_TOKENS
        if blocks < 1:
            continue
        blocks = min(blocks, _BLOCKS)
        ids = ids[: SINK_TOKENS + blocks * BLOCK_TOKENS + _TAIL_TOKENS]
        asked = []
        for block in range(blocks):
            own = questions_of_block(pairs, int(at), spans, block)
            for question in (own[k] for k in random.permutation(len(own))[:_QUESTIONS]):
                asked.append(
                    _asked(tokenizer, block, pairs.questions[question].words, pairs.questions[question].answers[0])
                )
        texts.append(
            TrimText(pairs.texts[at].name, "story", "fit" if len(texts) % 8 == 7 else "train", ids, tuple(asked))
        )
    return texts


def _asked(tokenizer: Any, block: int, question: str, answer: str) -> Asked:
    prompt = build_prompt(tokenizer, question)
    return Asked(block, prompt.ids, prompt.question.start, encode(tokenizer, answer))
