"""Streams of books that writers learn from: sinks, BLOCKS blocks, and FOLLOWING tokens behind them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everlong.data import Book
from everlong_lab.corpora.blocks import BLOCK_TOKENS, SINK_TOKENS, excerpt
from everlong_lab.corpora.record import Record
from everlong_lab.corpora.seeds import draws, held_out_in_turn

BLOCKS = 8
FOLLOWING = 256


def evicted_texts(tokenizer: Any, books: Sequence[Book], *, samples: int, seed: int = 0) -> list[Record]:
    """Return `samples` streams from the books in turn; one in eight is held out for fitting.

    The ids are [SINK_TOKENS + BLOCKS * BLOCK_TOKENS + FOLLOWING]. There are no questions.
    """
    random = draws(seed, "evicted")
    order = [books[at] for at in random.permutation(len(books))]
    texts: list[Record] = []
    short = 0
    while len(texts) < samples:
        book = order[(len(texts) + short) % len(order)]
        try:
            ids = excerpt(tokenizer, book, SINK_TOKENS + BLOCKS * BLOCK_TOKENS + FOLLOWING, random)
        except ValueError:
            short += 1
            if short > len(order):
                raise
            continue
        texts.append(Record(book.name, "book", held_out_in_turn(len(texts)), ids))
    return texts
