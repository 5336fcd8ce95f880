"""Streams of books that writers learn from: sinks, BLOCKS blocks, and FOLLOWING tokens behind them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from everlong.corpora.blocks import BLOCK_TOKENS, SINK_TOKENS, excerpt
from everlong.corpora.pairs import Split
from everlong.data import Book

BLOCKS = 8
FOLLOWING = 256


@dataclasses.dataclass(frozen=True)
class EvictedText:
    """A stream to learn from: ids int64 [SINK_TOKENS + BLOCKS * BLOCK_TOKENS + FOLLOWING]."""

    name: str
    split: Split
    ids: torch.Tensor

    def behind(self, blocks: int) -> torch.Tensor:
        """Int64 [FOLLOWING + 1]: the newest token of so many blocks, and what follows them."""
        end = SINK_TOKENS + blocks * BLOCK_TOKENS
        return self.ids[end - 1 : end + FOLLOWING]


def evicted_texts(tokenizer: Any, books: Sequence[Book], *, samples: int, seed: int = 0) -> list[EvictedText]:
    """Streams of so many books, as often each as any other; one in eight is held out for fitting."""
    random = np.random.default_rng(seed)
    order = [books[at] for at in random.permutation(len(books))]
    texts: list[EvictedText] = []
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
        texts.append(EvictedText(book.name, "fit" if len(texts) % 8 == 7 else "train", ids))
    return texts
