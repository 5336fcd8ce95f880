"""Frames with questions: one whose answer stands there, one whose answer has left, and a turn that needs neither.

What stands in a frame is the end of a story, or a stretch of a book in which facts were planted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch

from everlong.corpora.blocks import SINK_TOKENS, excerpt, sinks_of, story_tokens
from everlong.corpora.pairs import Pairs, Split
from everlong.corpora.planted import draw_planted, with_statements
from everlong.data import Book
from everlong.data.qa import qa_dialogues

Need = Literal["evicted", "resident", "none"]
NEEDS: tuple[Need, ...] = ("evicted", "resident", "none")
FRAME_TOKENS = (192, 384, 768)  # one number is drawn
_PLANTED = 2  # facts a stretch of a book: one is asked about, the other shows that being planted says nothing
_LEAST_SECTIONS = 4  # of a story whose end is a frame
_DIALOGUES: dict[Split, str] = {"train": "tiage-train", "fit": "tiage-train", "test": "tiage-dev"}


@dataclasses.dataclass(frozen=True)
class AskedOfFrame:
    words: str
    need: Need  # of its answer: it left the frame, it is there, or there is none


@dataclasses.dataclass(frozen=True)
class FrameText:
    """What a frame holds, ids [n] with the sinks first, and a question of each need."""

    name: str
    split: Split
    ids: torch.Tensor
    asked: tuple[AskedOfFrame, ...]


def frame_texts(
    tokenizer: Any,
    books: Sequence[Book],
    pairs: Pairs,
    *,
    count: int,
    split: Split,
    tokens: Sequence[int] = FRAME_TOKENS,
    seed: int = 0,
) -> list[FrameText]:
    """So many, stories of the split and books by turns. ValueError where there are neither stories nor books for it."""
    random = np.random.default_rng((seed, ("train", "fit", "test").index(split)))
    turns = [words for _, dialogue in qa_dialogues(_DIALOGUES[split]) for words, _ in dialogue if len(words) > 12]
    stories, stretches = (
        _of_stories(tokenizer, pairs, split, tokens, random),
        _of_books(tokenizer, books, tokens, random),
    )
    found = []
    for number in range(count):
        name, ids, resident, evicted = next(stretches if number % 2 else stories)
        none = turns[int(random.integers(len(turns)))]
        asked = tuple(AskedOfFrame(*one) for one in zip((evicted, resident, none), NEEDS, strict=True))
        found.append(FrameText(name, split, ids, asked))
    return found


_Frame = tuple[str, torch.Tensor, str, str]


def _of_stories(
    tokenizer: Any, pairs: Pairs, split: Split, tokens: Sequence[int], random: np.random.Generator
) -> Iterator[_Frame]:
    asked: dict[int, list[tuple[str, tuple[int, ...]]]] = {}
    for question in pairs.questions:
        asked.setdefault(question.text, []).append((question.words, question.pieces))
    there = [
        at
        for at, text in enumerate(pairs.texts)
        if text.split == split and text.origin == "fairytale" and len(text.pieces) >= _LEAST_SECTIONS and at in asked
    ]
    if len(there) < 2:
        raise ValueError(f"there are {len(there)} stories of the split {split}, expected two or more")
    while True:
        for at in random.permutation(there):
            ids, spans = story_tokens(tokenizer, pairs.texts[at].pieces)
            last = int(random.integers(_LEAST_SECTIONS // 2, len(spans)))
            end = spans[last][1]
            begin = max(SINK_TOKENS, end - int(random.choice(tokens)))
            own = [(words, [spans[piece] for piece in pieces]) for words, pieces in asked[int(at)]]
            resident = [words for words, of in own if all(begin <= one[0] and one[1] <= end for one in of)]
            if not resident:
                continue
            evicted = [words for words, of in own if all(one[1] <= begin for one in of)]
            if not evicted or random.random() < 0.3:  # of another story
                other = int(random.choice([one for one in there if one != at]))
                evicted = [words for words, _ in asked[other]]
            frame = torch.cat([ids[:SINK_TOKENS], ids[begin:end]])
            pick = (one[int(random.integers(len(one)))] for one in (resident, evicted))
            yield (pairs.texts[at].name, frame, *pick)


def _of_books(
    tokenizer: Any, books: Sequence[Book], tokens: Sequence[int], random: np.random.Generator
) -> Iterator[_Frame]:
    if not books:
        raise ValueError("there are no books")
    while True:
        for at in random.permutation(len(books)):
            length = int(random.choice(tokens))
            try:
                text = excerpt(tokenizer, books[at], length + SINK_TOKENS, random)
            except ValueError:
                continue
            facts = draw_planted(random, _PLANTED + 1)
            statements = [fact.statement for fact in facts[:_PLANTED]]
            ids, _, _ = with_statements(tokenizer, text[SINK_TOKENS:], statements, length, random)
            frame = torch.cat([sinks_of(tokenizer, text), ids])
            yield books[at].name, frame, facts[0].question, facts[_PLANTED].question
