"""Blocks of books that say something no model knows, and questions about it: what Head A learns from.

Each question meets three blocks, with the same text of a book. One says what it asks for. One says the same of another
version, parameter or name (N1). In the third its words stand for nothing (N2). In FairytaleQA's stories, three blocks
meet a question to each of them. Of the two that do not answer it, the one with more of its words is N2, the other N1.
With each question stands why the block is what is looked for, or is not. So whoever reads the question alone is right
only as often as one who guesses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from everlong.data import Book
from everlong.parts.writer.decider import KINDS
from everlong.text.encoding import decode_text, encode
from everlong.text.words import words_in
from everlong_lab.corpora.blocks import BLOCK_TOKENS, SINK_TOKENS, excerpt, questions_of_block, sinks_of, story_tokens
from everlong_lab.corpora.pairs import Pairs, Split
from everlong_lab.corpora.planted import with_statements
from everlong_lab.corpora.record import Question, Record, moved
from everlong_lab.corpora.seeds import draws, held_out_in_turn, in_turn, one_of
from everlong_lab.corpora.words import listed_in

_ASKED_OF_A_BLOCK = 3

# Each form has: the question; the answer; what a block says that is right, of another, and with its words alone; the
# three reasons.
_LISTED = listed_in("told")
_LETTERS = "ABCDEFGHKLMNPRSTVWX"
_STORY_REASONS = (
    "it tells what the question asks for",
    "it is another part of the story",
    "it has words of the question, but not what is asked for",
)


def rationale(question: Question, kind: str | None = None) -> str:
    """Return why the block is what is looked for, or is not; with `kind`, what the reason would be for that kind."""
    kind = kind or question.kind
    return f"I {'' if kind == 'right' else 'do not '}retrieve this because {question.reasons[KINDS.index(kind)]}."


def fact_blocks(
    tokenizer: Any, books: Sequence[Book], *, texts: int, split: Split | None = None, seed: int = 0
) -> list[Record]:
    """Return three blocks of each of `texts` places in books; the three have the same questions.

    With `split`, all are of that split. Otherwise one place in eight is held out for fitting.
    """
    random = draws(seed, "told")
    order = [books[at] for at in random.permutation(len(books))]
    blocks = []
    for number in range(texts):
        book = order[number % len(order)]
        text = excerpt(tokenizer, book, BLOCK_TOKENS + SINK_TOKENS, random)
        forms = [_drawn(form, random) for form in random.permutation(len(_LISTED["forms"]))[:_ASKED_OF_A_BLOCK]]
        begin = int(random.integers(len(KINDS)))
        for turn in range(len(KINDS)):
            kinds = [(begin + turn + at) % len(KINDS) for at in range(len(forms))]
            statements = [form[2 + kind] for form, kind in zip(forms, kinds, strict=True)]
            ids, spans, _ = with_statements(tokenizer, text[SINK_TOKENS:], statements, BLOCK_TOKENS, random)
            questions = tuple(
                Question(form[0], (form[1],), (place,) if KINDS[kind] == "right" else (), KINDS[kind], tuple(form[5:]))
                for form, kind, place in zip(forms, kinds, moved(spans, SINK_TOKENS), strict=True)
            )
            ids = torch.cat([sinks_of(tokenizer, text), ids])
            blocks.append(Record(book.name, "book", split or held_out_in_turn(number), ids, questions))
    return blocks


def fact_stories(
    tokenizer: Any, pairs: Pairs, *, texts: int, splits: Sequence[Split] = ("train", "fit"), seed: int = 0
) -> list[Record]:
    """Return three blocks of each of `texts` places in stories of the splits, with three questions: each block answers
    one.

    A long story has several places. Raises ValueError where no story of the splits is long enough.
    """
    random = draws(seed, "told stories")
    stories = []
    for at, text in enumerate(pairs.texts):
        if text.split not in splits or text.origin != "fairytale":
            continue
        ids, spans = story_tokens(tokenizer, text.pieces)
        blocks = range((len(ids) - SINK_TOKENS) // BLOCK_TOKENS)
        asked = {block: questions_of_block(pairs, at, spans, block) for block in blocks}
        asked = {block: questions for block, questions in asked.items() if questions}
        if len(asked) >= len(KINDS):
            stories.append((text, ids, spans, asked))
    if not stories:
        raise ValueError(f"no story of {', '.join(splits)} has {len(KINDS)} blocks that answer questions")
    found = []
    for number in range(texts):
        text, ids, spans, asked = stories[in_turn(seed, number, len(stories))]
        chosen = [int(block) for block in random.permutation(sorted(asked))[: len(KINDS)]]
        blocks_ids = [ids[SINK_TOKENS + block * BLOCK_TOKENS :][:BLOCK_TOKENS] for block in chosen]
        words = [set(words_in(decode_text(tokenizer, own.tolist()))) for own in blocks_ids]
        questions = [pairs.questions[asked[block][int(random.integers(len(asked[block])))]] for block in chosen]
        rows: list[list[Question]] = [[] for _ in chosen]
        for right, question in enumerate(questions):
            shared = [sum(word in there for word in words_in(question.words)) for there in words]
            nearest = max((at for at in range(len(chosen)) if at != right), key=shared.__getitem__)
            for at, row in enumerate(rows):
                kind = "right" if at == right else "words" if at == nearest else "other"
                there = moved([spans[piece] for piece in question.pieces], -chosen[at] * BLOCK_TOKENS)
                answered = there if kind == "right" else ()
                row.append(Question(question.words, question.answers[:1], answered, kind, _STORY_REASONS))
        for own, row in zip(blocks_ids, rows, strict=True):
            found.append(Record(text.name, "story", text.split, torch.cat([ids[:SINK_TOKENS], own]), tuple(row)))
    return found


def facts_of_both(
    tokenizer: Any, books: Sequence[Book], pairs: Pairs, *, places: int, stories: int, seed: int = 0
) -> list[list[Record]]:
    """Return what a writer is trained on: `places` in books and `stories` places in stories; a
    number of 0 gives none.
    """
    found = [fact_blocks(tokenizer, books, texts=places, seed=seed)] if places else []
    return [*found, *([fact_stories(tokenizer, pairs, texts=stories, seed=seed)] if stories else [])]


def _drawn(form: int, random: np.random.Generator) -> list[str]:
    def name() -> str:
        return "".join(one_of(random, _LISTED["syllables"]) for _ in range(3)).capitalize()

    def value() -> str:
        return f"{one_of(random, _LETTERS)}{one_of(random, _LETTERS)}-{random.integers(100, 1000)}"

    one, two = (int(version) + 1 for version in random.permutation(9)[:2])
    thing, wrong = (_LISTED["things"][at] for at in random.permutation(len(_LISTED["things"]))[:2])
    count, wrong_count = (int(crowns) + 11 for crowns in random.permutation(89)[:2])
    values = {
        "name": name(),
        "stranger": name(),
        "item": one_of(random, _LISTED["items"]),
        "count": count,
        "wrong_count": wrong_count,
        "one": one,
        "two": two,
        "value": value(),
        "wrong": value(),
        "thing": thing,
        "wrong_thing": wrong,
    }
    return [part.format(**values) for part in _LISTED["forms"][form]]


@dataclasses.dataclass(frozen=True)
class Exercise:
    """A question to a block as tokens: what is read behind D, and what the model is to say then."""

    question: torch.Tensor  # int64 [q]: input of the decision
    prompt: torch.Tensor  # int64 [n]
    reply: torch.Tensor  # int64 [m]: why, and the answer where it is there


def exercise(tokenizer: Any, question: Question) -> Exercise:
    answer = f" The answer: {question.answers[0]}." if question.kind == "right" else ""
    prompt = encode(tokenizer, f"Question: {question.words}\nIs it told above?")
    return Exercise(
        encode(tokenizer, f" {question.words}"), prompt, encode(tokenizer, f" {rationale(question)}{answer}")
    )
