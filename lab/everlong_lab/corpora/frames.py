"""Frames with questions: the answer to one stands there, that of another has left, and a turn needs neither.

A frame holds the end of a story, or a stretch of a book in which facts were planted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from everlong.data import Book
from everlong_lab.corpora.blocks import SINK_TOKENS, excerpt, sinks_of, story_tokens
from everlong_lab.corpora.pairs import Pairs, Split
from everlong_lab.corpora.planted import draw_planted, with_statements
from everlong_lab.corpora.record import Question, Record, moved
from everlong_lab.corpora.seeds import draws, one_of
from everlong_lab.data.qa import qa_dialogues

NEEDS = ("evicted", "resident", "none")  # of a question: its answer left the frame, it is there, or there is none
FRAME_TOKENS = (192, 384, 768)  # one number is drawn
_PLANTED = 2  # facts in a stretch of a book; one is asked about, so that being planted says nothing
_LEAST_SECTIONS = 4  # in a story whose end is a frame
_DIALOGUES: dict[Split, str] = {"train": "tiage-train", "fit": "tiage-train", "test": "tiage-dev"}


def frame_texts(
    tokenizer: Any,
    books: Sequence[Book],
    pairs: Pairs,
    *,
    count: int,
    split: Split,
    tokens: Sequence[int] = FRAME_TOKENS,
    seed: int = 0,
) -> list[Record]:
    """Return `count` frames, of the split's stories and of books in turn.

    Raises ValueError where there are no stories or no books for it.
    """
    random = draws(seed, f"frames {split}")
    turns = [words for _, dialogue in qa_dialogues(_DIALOGUES[split]) for words, _ in dialogue if len(words) > 12]
    stories, stretches = (
        _of_stories(tokenizer, pairs, split, tokens, random),
        _of_books(tokenizer, books, tokens, random),
    )
    found = []
    for number in range(count):
        name, origin, ids, resident, evicted = next(stretches if number % 2 else stories)
        none = Question(one_of(random, turns), kind="none")
        found.append(Record(name, origin, split, ids, (evicted, resident, none)))
    return found


# Name, origin, ids; the question whose answer is there, and the one whose answer is not
_Frame = tuple[str, str, torch.Tensor, Question, Question]


def _of_stories(
    tokenizer: Any, pairs: Pairs, split: Split, tokens: Sequence[int], random: np.random.Generator
) -> Iterator[_Frame]:
    questions: dict[int, list[tuple[str, tuple[int, ...]]]] = {}
    for question in pairs.questions:
        questions.setdefault(question.text, []).append((question.words, question.pieces))
    there = [
        at
        for at, text in enumerate(pairs.texts)
        if text.split == split
        and text.origin == "fairytale"
        and len(text.pieces) >= _LEAST_SECTIONS
        and at in questions
    ]
    if len(there) < 2:
        raise ValueError(f"there are {len(there)} stories of the split {split}, expected two or more")
    while True:
        for at in random.permutation(there):
            ids, spans = story_tokens(tokenizer, pairs.texts[at].pieces)
            last = int(random.integers(_LEAST_SECTIONS // 2, len(spans)))
            end = spans[last][1]
            begin = max(SINK_TOKENS, end - int(random.choice(tokens)))
            own = [(words, [spans[piece] for piece in pieces]) for words, pieces in questions[int(at)]]
            resident = [(words, of) for words, of in own if all(begin <= one[0] and one[1] <= end for one in of)]
            if not resident:
                continue
            evicted = [words for words, of in own if all(one[1] <= begin for one in of)]
            if not evicted or random.random() < 0.3:  # of another story
                other = int(random.choice([one for one in there if one != at]))
                evicted = [words for words, _ in questions[other]]
            frame = torch.cat([ids[:SINK_TOKENS], ids[begin:end]])
            words, of = one_of(random, resident)
            there_is = Question(words, spans=moved(of, SINK_TOKENS - begin), kind="resident")
            yield pairs.texts[at].name, "story", frame, there_is, Question(one_of(random, evicted), kind="evicted")


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
            ids, spans, _ = with_statements(tokenizer, text[SINK_TOKENS:], statements, length, random)
            frame = torch.cat([sinks_of(tokenizer, text), ids])
            first, unsaid = facts[0], facts[_PLANTED]
            resident = Question(first.question, (first.answer,), moved(spans[:1], SINK_TOKENS), "resident")
            yield books[at].name, "book", frame, resident, Question(unsaid.question, kind="evicted")
