"""The paraphrase set asks in other words, as it says."""

from __future__ import annotations

import re

import pytest

from everlong_lab.corpora.development import DEVELOPMENT
from everlong_lab.corpora.facts import ASSOCIATIONS, PARAPHRASES, make_facts

_FUNCTION_WORDS = """because before does every from have into made make makes nobody nothing once over owing that their
there these they were what when where which while will with without after"""
_STOP = frozenset(re.findall(r"[a-z]+", _FUNCTION_WORDS))


def stems(text: str) -> set[str]:
    """Words of four letters and more, cut to five: `clocks` and `clock` are the same."""
    return {word[:5] for word in re.findall(r"[a-z0-9]{4,}", text.lower()) if word not in _STOP}


def test_there_are_enough_and_no_two_are_alike() -> None:
    both = PARAPHRASES + DEVELOPMENT
    assert len(PARAPHRASES) >= 40
    assert len(DEVELOPMENT) >= 200
    assert len({fact.statement for fact in both}) == len(both)
    assert len({fact.question for fact in both}) == len(both)


def test_associations_share_no_word_with_their_questions() -> None:
    assert len(ASSOCIATIONS) >= 60
    assert len({fact.answer for fact in ASSOCIATIONS}) == len(ASSOCIATIONS)
    for fact in ASSOCIATIONS:
        assert not stems(fact.statement) & stems(fact.question), fact.question
        assert fact.accept(fact.statement), fact.statement
        assert not fact.accept(fact.question), fact.question
    assert {fact.key for fact in make_facts(["association"], 60, seed=3)} <= {fact.key for fact in ASSOCIATIONS}


def test_nothing_is_tuned_on_an_answer_that_is_tested() -> None:
    assert not {fact.answer for fact in DEVELOPMENT} & {fact.answer for fact in PARAPHRASES}


def test_questions_share_hardly_a_word_with_their_statements() -> None:
    for fact in PARAPHRASES + DEVELOPMENT:
        shared = stems(fact.statement) & stems(fact.question)
        assert len(shared) <= 1, (fact.question, shared)
        assert not stems(fact.answer) & stems(fact.question), fact.question


def test_the_statement_gives_the_answer_and_the_question_does_not() -> None:
    for fact in PARAPHRASES + DEVELOPMENT:
        assert fact.accept(fact.statement), fact.statement
        assert not fact.accept(fact.question), fact.question


def test_they_are_drawn_like_any_kind() -> None:
    drawn = make_facts(["paraphrase"], len(PARAPHRASES), seed=3)
    assert sorted(fact.key for fact in drawn) == sorted(fact.key for fact in PARAPHRASES)
    assert len({fact.key for fact in drawn}) == len(drawn)
    assert make_facts(["paraphrase"], 5, seed=3) == drawn[:5]
    assert make_facts(["paraphrase"], 5, seed=4) != drawn[:5]
    with pytest.raises(ValueError, match="only 48 facts of kind 'paraphrase'"):
        make_facts(["paraphrase"], 49)


def test_to_draw_them_too_leaves_the_other_kinds_as_they_are() -> None:
    others = make_facts(["uuid", "name"], 4, seed=1)
    assert make_facts(["uuid", "name", "paraphrase"], 4, seed=1)[:8] == others
