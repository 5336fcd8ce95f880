"""Texts that punish lazy trimming, by seeded generators over real books.

- *redundancy*: facts in long prose; each is asked for.
- *switch*: a block of one book, then one of another book, which goes on. A fact of the older block returns in it, the
  bridge. All tokens of its blocks compete for the same slots.
- *dependence*: what follows needs a fact of the first block and one of the second.
- *prose*: a book that goes on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch

from everlong.data import Book
from everlong.text.encoding import encode
from everlong.text.prompt import build_prompt
from everlong_lab.corpora.blocks import BLOCK_TOKENS, SINK_TOKENS, free_tokens, sinks_of, stretch
from everlong_lab.corpora.planted import draw_planted, with_statements
from everlong_lab.corpora.record import Record
from everlong_lab.corpora.seeds import draws, held_out_in_turn

Family = Literal["redundancy", "switch", "dependence", "prose"]
FAMILIES: tuple[Family, ...] = ("redundancy", "switch", "dependence", "prose")

_ROLLING_TOKENS = 256  # newest tokens, which stand whole behind the blocks
_FOLLOWING_TOKENS = 96
_FACTS = 3  # in a block
_QUESTIONS = 3  # of a scenario


@dataclasses.dataclass(frozen=True)
class Target:
    """Tokens that are read behind a stream; those from `first` on are predicted."""

    ids: torch.Tensor  # int64 [S]
    first: int


@dataclasses.dataclass(frozen=True)
class Scenario(Record):
    """A stream of int64 ids [SINK_TOKENS + blocks * BLOCK_TOKENS + rolling]. Its origin is its family."""

    targets: tuple[Target, ...] = ()


def draw_scenarios(tokenizer: Any, books: Sequence[Book], count: int, *, seed: int = 0) -> list[Scenario]:
    """Return `count` scenarios, the families in turn; one in eight is held out.

    Raises ValueError where all books are too short.
    """
    random = draws(seed, "scenarios")
    make: dict[Family, Callable[[], tuple[torch.Tensor, list[Target]]]] = {
        "redundancy": lambda: _redundancy(tokenizer, books, random),
        "switch": lambda: _switch(tokenizer, books, random),
        "dependence": lambda: _dependence(tokenizer, books, random),
        "prose": lambda: _prose(tokenizer, books, random),
    }
    found: list[Scenario] = []
    for number in range(count):
        family = FAMILIES[number % len(FAMILIES)]
        ids, targets = make[family]()
        split = held_out_in_turn(number // len(FAMILIES))
        found.append(Scenario(f"{family} {number}", family, split, ids, targets=tuple(targets)))
    return found


def _redundancy(
    tokenizer: Any, books: Sequence[Book], random: np.random.Generator
) -> tuple[torch.Tensor, list[Target]]:
    text = _excerpt(tokenizer, books, 2 * BLOCK_TOKENS, random)
    facts = draw_planted(random, 2 * _FACTS)
    pieces = [sinks_of(tokenizer, text)]
    for own in (facts[:_FACTS], facts[_FACTS:]):
        piece, _, used = with_statements(tokenizer, text, [fact.statement for fact in own], BLOCK_TOKENS, random)
        pieces.append(piece)
        text = text[used:]
    questions = (facts[at] for at in random.permutation(len(facts))[:_QUESTIONS])
    return torch.cat(pieces), [_answered(tokenizer, fact.question, fact.answer) for fact in questions]


def _switch(tokenizer: Any, books: Sequence[Book], random: np.random.Generator) -> tuple[torch.Tensor, list[Target]]:
    older = _excerpt(tokenizer, books, BLOCK_TOKENS, random)
    newer = _excerpt(tokenizer, books, BLOCK_TOKENS + _ROLLING_TOKENS + _FOLLOWING_TOKENS, random)
    bridge, other = draw_planted(random, 2)
    first, _, _ = with_statements(tokenizer, older, [bridge.statement], BLOCK_TOKENS, random)
    second, _, used = with_statements(tokenizer, newer, [other.statement], BLOCK_TOKENS, random)
    tail = newer[used : used + _ROLLING_TOKENS]
    follows = newer[used + _ROLLING_TOKENS - 1 : used + _ROLLING_TOKENS + _FOLLOWING_TOKENS]
    again = encode(tokenizer, f"\n\n{bridge.statement}\n\n")
    ids = torch.cat([sinks_of(tokenizer, older), first, second, tail])
    return ids, [Target(follows, 1), Target(torch.cat([tail[-1:], again]), 1)]


def _dependence(
    tokenizer: Any, books: Sequence[Book], random: np.random.Generator
) -> tuple[torch.Tensor, list[Target]]:
    text = _excerpt(tokenizer, books, 2 * BLOCK_TOKENS + _ROLLING_TOKENS, random)
    facts = draw_planted(random, 4)
    pieces = [sinks_of(tokenizer, text)]
    for own in (facts[:2], facts[2:]):
        piece, _, used = with_statements(tokenizer, text, [fact.statement for fact in own], BLOCK_TOKENS, random)
        pieces.append(piece)
        text = text[used:]
    tail = text[:_ROLLING_TOKENS]
    both = (facts[int(random.integers(2))], facts[2 + int(random.integers(2))])
    told = " ".join(fact.statement for fact in both)
    again = encode(tokenizer, f"\n\nThis was said before: {told}\n\n")
    return torch.cat([*pieces, tail]), [Target(torch.cat([tail[-1:], again]), 1)]


def _prose(tokenizer: Any, books: Sequence[Book], random: np.random.Generator) -> tuple[torch.Tensor, list[Target]]:
    read = SINK_TOKENS + 2 * BLOCK_TOKENS + _ROLLING_TOKENS
    text = _excerpt(tokenizer, books, read + _FOLLOWING_TOKENS, random)
    ids = torch.cat([sinks_of(tokenizer, text), text[SINK_TOKENS:]])
    return ids[:read], [Target(ids[read - 1 : read + _FOLLOWING_TOKENS], 1)]


def _answered(tokenizer: Any, question: str, answer: str) -> Target:
    prompt = build_prompt(tokenizer, question).ids
    return Target(torch.cat([prompt, encode(tokenizer, answer)]), len(prompt))


def _excerpt(tokenizer: Any, books: Sequence[Book], tokens: int, random: np.random.Generator) -> torch.Tensor:
    """Return ids [tokens + SINK_TOKENS] of some book, from a paragraph's beginning."""
    wanted = tokens + SINK_TOKENS
    for at in random.permutation(len(books)):
        book = books[int(at)]
        low, high = free_tokens(book, wanted)
        if high <= low:
            continue
        _, ids = stretch(tokenizer, book, wanted, random)
        if len(ids) >= wanted:
            return ids[:wanted]
    raise ValueError(f"no book has {wanted:,} tokens from one place on")
