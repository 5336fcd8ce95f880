"""The plan of a suite: everything stands where it is said to stand, in the tokens of the stream that reading makes."""

from __future__ import annotations

import collections
import functools
import re

import pytest

from everlong.data import Book
from everlong_lab.corpora.tasks import SUITES
from everlong_lab.eval.plan import Plan, make_plan
from support import byte_tokenizer
from support.texts import paragraph_books

TOKENIZER = byte_tokenizer()
LENGTHS = (60_000, 120_000)  # a token is a byte here


@functools.cache
def plan_of(seed: int = 0) -> Plan:
    return make_plan(SUITES["all"], LENGTHS, 2, paragraph_books(8, 150), TOKENIZER, seed=seed)


def stream() -> str:
    return "".join(part.text for part in plan_of().texts)


def test_spans_are_the_statements_and_the_evidence() -> None:
    text = stream()
    for asked in plan_of().questions:
        told = [text[begin:end].strip() for begin, end in asked.spans]
        question = asked.question
        if question.statements:
            needed = question.evidence or question.statements
            assert told == [text for text in question.statements if text in needed], asked.id
        elif question.evidence:
            assert told == list(question.evidence), asked.id
        else:
            assert told == [document.text.strip() for document in question.documents], asked.id


def test_texts_are_joined_without_a_gap_and_lengths_are_met() -> None:
    plan = plan_of()
    assert plan.texts[0].begin == 0
    for before, after in zip(plan.texts, plan.texts[1:], strict=False):
        assert before.end == after.begin
    for length, texts in plan.read_at.items():
        assert plan.texts[texts - 1].end == pytest.approx(length, rel=0.05)
    assert plan.tokens == len(stream())


def test_a_question_needs_only_what_is_read_at_its_length() -> None:
    plan = plan_of()
    for asked in plan.questions:
        read_to = plan.texts[plan.read_at[asked.length] - 1].end
        assert all(end <= read_to for _, end in asked.spans), asked.id
        assert 0 <= asked.depth <= 1.01
        for answer in asked.question.answers:
            assert answer in asked.gold


def test_every_document_and_distractor_is_read_once() -> None:
    text = stream()
    for asked in plan_of().questions:
        for part in (*asked.question.statements, *asked.question.distractors):
            assert text.count(part) == 1
        for document in asked.question.documents:
            assert sum(part.source == document.source for part in plan_of().texts) == 1


def test_depths_are_spread_over_the_whole() -> None:
    for length in LENGTHS:
        singles = [asked.depth for asked in plan_of().questions if len(asked.spans) == 1 and asked.length == length]
        by_fifth = collections.Counter(int(5 * depth) for depth in singles)
        assert all(by_fifth[fifth] >= len(singles) / 20 for fifth in range(5)), by_fifth


def test_recalled_spans_cover_what_they_hold_whole() -> None:
    asked = next(asked for asked in plan_of().questions if asked.task == "vt")
    begin, end = asked.spans[0]
    assert asked.covered([]) == 0.0
    assert asked.covered([(begin, end)]) == pytest.approx(1 / len(asked.spans))
    assert asked.covered([(begin + 1, end)]) == 0.0
    assert asked.covered([(0, LENGTHS[-1] * 2)]) == 1.0
    middle = (begin + end) // 2
    for pieces, found in (
        ([(middle, end), (begin, middle)], 1 / len(asked.spans)),  # two passages, the better one first
        ([(begin, middle + 1), (middle, end)], 1 / len(asked.spans)),
        ([(begin, middle), (middle + 1, end)], 0.0),
    ):
        assert asked.covered(pieces) == pytest.approx(found)


def test_the_same_seed_gives_the_same_plan() -> None:
    again = make_plan(SUITES["all"], LENGTHS, 2, paragraph_books(8, 150), TOKENIZER)
    assert again.questions == plan_of().questions
    assert [part.text for part in again.texts] == [part.text for part in plan_of().texts]
    assert plan_of(seed=1).questions != plan_of().questions


@pytest.mark.slow
@pytest.mark.parametrize(("length", "count"), [(16_384, 8), (30_000, 40)])
def test_too_little_room_is_told_with_what_would_work(length: int, count: int) -> None:
    with pytest.raises(ValueError, match=f"{length:,} tokens are too few.*fewer questions") as told:
        make_plan(SUITES["all"], (length,), count, paragraph_books(8, 150), TOKENIZER)
    longer, each, fewer = re.search(
        r"([\d,]+) tokens hold (\d+) of each task, .*: (\d+) of each fit", str(told.value)
    ).groups()
    assert int(each) == count
    assert int(fewer) < count
    more = [Book(f"{book.name} again {n}", book.text) for n in range(12) for book in paragraph_books(8, 150)]
    for fitting, questions in ((int(longer.replace(",", "")), count), (length, int(fewer))):
        plan = make_plan(SUITES["all"], (fitting,), questions, more, TOKENIZER)
        assert plan.tokens == pytest.approx(fitting, rel=0.05)


def test_where_one_question_of_each_is_too_many_longer_texts_are_named() -> None:
    with pytest.raises(ValueError, match=r"1,024 tokens are too few: .* even one of each is too many .* fewer tasks"):
        make_plan(SUITES["all"], (1_024,), 4, paragraph_books(8, 150), TOKENIZER)
