"""What was told last stands first, what is about another thing does not, and passages that disagree are less sure."""

from __future__ import annotations

import datetime

import pytest

import everlong
from everlong.retrieval.recency import DISAGREEING
from support import SMALL, byte_tokenizer, tiny_model

CONFIG = SMALL.changed(search={"index": ("lexical",)}, answer={"quotes": 1}, archive={"block_tokens": 256})

FILLER = "Somebody walked along the quiet river and counted every tree. " * 12

LAST = "Nothing else was written down. " * 20


def asked(texts: list[tuple[str, float | None]], question: str, newest_first: bool = True) -> everlong.Answer:
    config = CONFIG.changed(search={"newest_first": newest_first})
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), None, config, pack=None) as mm:
        for number, (text, happened) in enumerate(texts):
            mm.read(f"{FILLER}\n\n{text}\n\n{FILLER}", source=f"text {number}", happened=happened)
        mm.read(LAST, source="last")
        return mm.generate(question, max_new_tokens=1, remember=False)


ASKED = "budget of the harbour?"

PAIRS = [
    (
        "The budget of the harbour is 40,000 crowns.",
        "The budget of the harbour is 55,000 crowns.",
        ASKED,
    ),
    (
        "The HARBOUR board meets on Tuesday.",
        "The HARBOUR board meets on Friday now.",
        "HARBOUR board meets on?",
    ),
    ("The harbour keeper is old Mr Ashby.", "The harbour keeper is young Mrs Lang.", "Who is the harbour keeper?"),
]


@pytest.mark.parametrize(("first", "later", "question"), PAIRS)
def test_what_was_told_last_comes_first_and_both_are_cited(first: str, later: str, question: str) -> None:
    for texts, newest in (
        ([(first, None), (later, None)], later),
        ([(later, 2e9), (first, 1e9)], later),  # by the time of events, whatever was read last
        ([(first, 2e9), (later, 1e9)], first),
    ):
        answer = asked(texts, question)
        assert answer.quoted == (newest,)
        cited = [recall.text for recall in answer.recalled]
        assert newest in cited[0]
        assert any(first in text for text in cited)
        assert any(later in text for text in cited)
        of_both = [recall for recall in answer.recalled if first in recall.text or later in recall.text]
        times = [datetime.datetime.fromisoformat(recall.told) for recall in of_both]
        assert times == sorted(times, reverse=True)
        plain = asked(texts, question, newest_first=False)
        assert plain.confidence is not None
        assert answer.confidence == pytest.approx(DISAGREEING * plain.confidence)
        assert [recall.score for recall in answer.recalled] == [recall.score for recall in plain.recalled]


@pytest.mark.parametrize(
    ("first", "later", "question"),
    [
        ("The budget of the harbour is 40,000 crowns.", "The budget of the theatre is 55,000 crowns.", ASKED),
        ("The budget of the harbour is 40,000 crowns.", "The budget of the harbour was debated at length.", ASKED),
        ("The harbour keeper is old Mr Ashby.", "The harbour keeper paid 500 crowns.", "Who is the harbour keeper?"),
    ],
)  # fmt: skip
def test_what_is_no_newer_value_of_the_same_changes_nothing(first: str, later: str, question: str) -> None:
    texts = [(first, None), (later, None)]
    answer, plain = asked(texts, question), asked(texts, question, newest_first=False)
    assert answer.quoted == plain.quoted
    assert answer.recalled == plain.recalled or [r.span for r in answer.recalled] == [r.span for r in plain.recalled]
    assert answer.confidence == plain.confidence


def test_the_same_value_told_twice_is_no_disagreement() -> None:
    texts = [(PAIRS[0][0], None), (PAIRS[0][0], None)]
    assert asked(texts, PAIRS[0][2]).confidence == asked(texts, PAIRS[0][2], newest_first=False).confidence
