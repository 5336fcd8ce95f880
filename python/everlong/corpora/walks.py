"""Books in which chains of facts are planted (corpora/chains.py): what the Walker learns from and is measured on."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from everlong.corpora.chains import Chain, ChainSplit, draw_chains
from everlong.corpora.planted import with_statements
from everlong.data import Book
from everlong.text.encoding import encode


@dataclasses.dataclass(frozen=True)
class WalkText:
    """A text with its chains, and where each of their statements stands."""

    name: str
    ids: torch.Tensor  # int64 [n]
    chains: tuple[Chain, ...]
    spans: tuple[tuple[tuple[int, int], ...], ...]  # of chains, by statement: tokens [first, last)


def draw_walk_texts(
    tokenizer: Any,
    books: Sequence[Book],
    *,
    texts: int,
    tokens: int,
    chains: int,
    split: ChainSplit,
    seed: int,
) -> list[WalkText]:
    """So many texts of `tokens` tokens each, of books in turn, with as many chains of one, two and three facts in each
    as make `chains` together. ValueError where the books are too short.
    """
    random = np.random.default_rng([seed, len(split)])
    drawn = []
    for number in range(texts):
        book = books[number % len(books)]
        characters = 6 * tokens
        first = int(random.integers(max(1, len(book.text) - characters))) if len(book.text) > characters else 0
        text = encode(tokenizer, book.text[first : first + characters])
        planted = draw_chains(random, [1 + at % 3 for at in range(chains)], split)
        statements = [(at, statement) for at, chain in enumerate(planted) for statement in chain.statements]
        order = random.permutation(len(statements))  # one chain's facts stand anywhere
        ids, places, _ = with_statements(tokenizer, text, [statements[at][1] for at in order], tokens, random)
        spans: list[list[tuple[int, int]]] = [[] for _ in planted]
        of_statement = dict(zip(order.tolist(), places, strict=True))
        for at, (chain, _) in enumerate(statements):
            spans[chain].append(of_statement[at])
        drawn.append(WalkText(f"{book.name} {number}", ids, tuple(planted), tuple(map(tuple, spans))))
    return drawn
