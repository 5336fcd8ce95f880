"""Streams with questions about their blocks, which the Trimmer learns from: sinks, blocks, a tail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from everlong.data import Book
from everlong_lab.corpora.blocks import BLOCK_TOKENS, SINK_TOKENS, questions_of_block, sinks_of, story_tokens, stretch
from everlong_lab.corpora.pairs import Pairs
from everlong_lab.corpora.planted import draw_planted, with_statements
from everlong_lab.corpora.record import Question, Record, moved
from everlong_lab.corpora.seeds import draws, held_out_in_turn

_BLOCKS = 2
_TAIL_TOKENS = 384
CONTINUED_TOKENS = 128  # the last tokens of the tail
_FACTS = 3  # in a block of a book that has any
_PLANTED_SHARE = 0.5  # share of the blocks of books
_QUESTIONS = 6  # most questions about a block of a story


def trim_texts(
    tokenizer: Any, books: Sequence[Book], pairs: Pairs | None, *, samples: int, stories: int, seed: int = 0
) -> list[Record]:
    """Return `samples` streams of books, and one stream for each of `stories` stories, mixed.

    Half of the books' blocks have planted facts. One in eight of either is held out for fitting.
    """
    random = draws(seed, "attended")
    texts = list(_of_books(tokenizer, books, samples, random))
    texts += _of_stories(tokenizer, pairs, stories, random) if pairs is not None and stories > 0 else []
    return [texts[at] for at in random.permutation(len(texts))]


def _of_books(tokenizer: Any, books: Sequence[Book], count: int, random: np.random.Generator) -> Iterator[Record]:
    tokens = SINK_TOKENS + _BLOCKS * BLOCK_TOKENS + _TAIL_TOKENS
    order = [books[at] for at in random.permutation(len(books))]
    for number in range(count):
        book = order[number % len(order)]
        begin, text = stretch(tokenizer, book, tokens, random)
        pieces, questions = [sinks_of(tokenizer, text)], list[Question]()
        text = text[SINK_TOKENS:]
        for block in range(_BLOCKS):
            facts = draw_planted(random, _FACTS) if random.random() < _PLANTED_SHARE else []
            piece, spans, used = with_statements(
                tokenizer, text, [fact.statement for fact in facts], BLOCK_TOKENS, random
            )
            pieces.append(piece)
            text = text[used:]
            places = moved(spans, SINK_TOKENS + block * BLOCK_TOKENS)
            questions += [
                Question(fact.question, (fact.answer,), (place,)) for fact, place in zip(facts, places, strict=True)
            ]
        pieces.append(text[:_TAIL_TOKENS])
        yield Record(f"{book.name} {begin}", "book", held_out_in_turn(number), torch.cat(pieces), tuple(questions))


def _of_stories(tokenizer: Any, pairs: Pairs, count: int, random: np.random.Generator) -> list[Record]:
    stories = [
        at for at, text in enumerate(pairs.texts) if text.origin == "fairytale" and text.split in ("train", "fit")
    ]
    texts: list[Record] = []
    for at in random.permutation(stories):
        if len(texts) == count:
            break
        ids, spans = story_tokens(tokenizer, pairs.texts[at].pieces)
        blocks = (len(ids) - SINK_TOKENS - CONTINUED_TOKENS) // BLOCK_TOKENS
        if blocks < 1:
            continue
        blocks = min(blocks, _BLOCKS)
        ids = ids[: SINK_TOKENS + blocks * BLOCK_TOKENS + _TAIL_TOKENS]
        questions = []
        for block in range(blocks):
            own = questions_of_block(pairs, int(at), spans, block)
            for question in (own[k] for k in random.permutation(len(own))[:_QUESTIONS]):
                values = pairs.questions[question]
                questions.append(
                    Question(values.words, values.answers[:1], tuple(spans[piece] for piece in values.pieces))
                )
        texts.append(Record(pairs.texts[at].name, "story", held_out_in_turn(len(texts)), ids, tuple(questions)))
    return texts
