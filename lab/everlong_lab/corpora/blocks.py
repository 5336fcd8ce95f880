"""Streams of blocks: books and stories as token ids, cut as a memory cuts them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from everlong.data import Book
from everlong.text.encoding import encode
from everlong.text.prompt import start_ids
from everlong_lab.corpora.pairs import Pairs

SINK_TOKENS = 4  # first tokens of a stream, which are always kept
BLOCK_TOKENS = 512
EDGE = 0.06  # share of a book to skip at either end: contents, notes, licences


def stretch(tokenizer: Any, book: Book, tokens: int, random: np.random.Generator) -> tuple[int, torch.Tensor]:
    """Return a place where a paragraph of a book begins, in characters, and the ids of the text from there on.

    They are `tokens` ids or more, where the book has room for them.
    """
    low, high = free_tokens(book, tokens)
    begin = book.text.find("\n\n", int(random.integers(low, max(low + 1, high)))) + 2
    return begin, encode(tokenizer, book.text[begin : begin + 8 * tokens])


def free_tokens(book: Book, tokens: int) -> tuple[int, int]:
    """Return the characters between which a stretch of `tokens` tokens may begin; no room where the second is not
    larger.
    """
    return int(len(book.text) * EDGE), int(len(book.text) * (1 - EDGE)) - 8 * tokens


def excerpt(tokenizer: Any, book: Book, tokens: int, random: np.random.Generator) -> torch.Tensor:
    """Return ids [tokens] of a book from a paragraph's beginning, sinks first.

    Raises ValueError for a book that is too short from there on.
    """
    _, text = stretch(tokenizer, book, tokens, random)
    ids = torch.cat([sinks_of(tokenizer, text), text[SINK_TOKENS:]])[:tokens]
    if len(ids) < tokens:
        raise ValueError(f"{book.name} is too short for {tokens} tokens from one place on")
    return ids


def sinks_of(tokenizer: Any, text: torch.Tensor) -> torch.Tensor:
    """Return the first tokens of a stream: what the tokenizer puts before every text, and the beginning of the text."""
    start = torch.tensor(start_ids(tokenizer), dtype=torch.int64)
    return torch.cat([start, text])[:SINK_TOKENS]


def story_tokens(tokenizer: Any, sections: Sequence[str]) -> tuple[torch.Tensor, list[tuple[int, int]]]:
    """Return a story as a stream, and where its sections stand in it."""
    pieces, spans, length = [torch.tensor(start_ids(tokenizer), dtype=torch.int64)], [], len(start_ids(tokenizer))
    for section in sections:
        piece = encode(tokenizer, section + "\n\n")
        pieces.append(piece)
        spans.append((length, length + len(piece)))
        length += len(piece)
    return torch.cat(pieces), spans


def questions_of_block(pairs: Pairs, text: int, spans: Sequence[tuple[int, int]], block: int) -> list[int]:
    """Return the questions about a text whose answering sections all lie in one block of its stream."""
    begin = SINK_TOKENS + block * BLOCK_TOKENS
    inside = {
        at
        for at, (first, last) in enumerate(spans)
        if first >= begin - SINK_TOKENS * (block == 0) and last <= begin + BLOCK_TOKENS
    }
    return [
        at
        for at, question in enumerate(pairs.questions)
        if question.text == text and question.pieces and question.answers and inside.issuperset(question.pieces)
    ]
