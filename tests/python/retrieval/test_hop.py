"""A second search, by the question with what the first one found."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import everlong
from everlong.frame.part import Offer
from everlong.retrieval.hop import by_text, with_second
from everlong.retrieval.recall import SearchOutcome
from support import SMALL, byte_tokenizer, tiny_model
from support.examples import examples

CONFIG = SMALL.changed(search={"index": ("words",), "groups": 8, "neighbours": 0}, frame={"recalled_tokens": 512})
TEXTS = {
    "brewery": "The Golden Otter brewery was founded by Ignatius Quillfeather.",
    "founder": "Quillfeather was born on a barge near Ghent.",
    **{
        f"filler {number}": f"The {word} brewery was old and its beer was dark." for number, word in enumerate("abcdef")
    },
    **{f"other {number}": f"Somebody was born on a {word} in spring." for number, word in enumerate("ghijkl")},
    "end": "x" * 700,  # what stands in the frame is not recalled
}
QUESTION = "By whom was the Golden Otter brewery founded, and where was that man born?"


def opened(config: Any) -> everlong.MemoryModel:
    mm = everlong.MemoryModel(tiny_model(), byte_tokenizer(), None, config)
    for source, text in TEXTS.items():
        mm.read(text, source=source)
    return mm


def test_what_the_best_sentence_names_is_found_too() -> None:
    with opened(CONFIG) as mm:
        found = mm.recall(QUESTION)
        assert found[0].source == "brewery"
        assert "founder" in {one.source for one in found[-2:]}
        assert len(found) == 8
        mm.config = CONFIG.changed(search={"hop": False})
        without = mm.recall(QUESTION)
        assert [one.span for one in without[:6]] == [one.span for one in found[:6]]
        assert "founder" not in {one.source for one in without}
        mm.config = CONFIG.changed(search={"groups": 7})
        assert "founder" not in {one.source for one in mm.recall(QUESTION)}


def test_nothing_that_a_filter_leaves_out_is_found_by_it() -> None:
    with opened(CONFIG) as mm:
        others = everlong.Where(source=[source for source in TEXTS if source != "founder"])
        assert "founder" not in {one.source for one in mm.recall(QUESTION, where=others)}


def test_where_quotes_stand_alone_it_takes_no_group_s_place() -> None:
    with opened(CONFIG) as mm:
        mm.config = CONFIG.changed(answer={"quotes": 4, "quotes_alone": True})
        answer = mm.generate(QUESTION, max_new_tokens=1, remember=False, chat=False)
        assert len(answer.recalled) == 10
        assert "founder" in {one.source for one in answer.recalled[-2:]}
        assert any("Ghent" in line for line in answer.quoted)
        assert mm.frame.os.recalled_tokens == 0


def test_it_needs_a_search_by_text_and_groups_to_give_away() -> None:
    assert by_text(CONFIG) is not None
    assert by_text(CONFIG.changed(search={"groups": 7})) is None
    assert by_text(CONFIG.changed(search={"hop": False})) is None
    assert by_text(CONFIG.changed(search={"index": ("heads",)})) is None
    both = by_text(CONFIG.changed(search={"index": ("heads", "words", "encoder")}))
    assert both is not None
    assert both.search.index == ("words", "encoder")


def offer(begin: int, tokens: int, score: float, confidence: float | None) -> Offer:
    page = SimpleNamespace(block=begin, page=0, stream=0, begin=begin, end=begin + tokens)
    return Offer(score, page, ("words",), pages=(page,), confidence=confidence)  # type: ignore[arg-type]


OFFERS = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 64)), max_size=12, unique_by=lambda one: one[0])


@examples(200)
@given(OFFERS.filter(bool), OFFERS, st.booleans(), st.booleans(), st.integers(4, 12))
def test_they_stand_at_the_end_and_fit(first: Any, second: Any, alone: bool, sure: bool, groups: int) -> None:
    config = CONFIG.changed(search={"groups": groups}, answer={"quotes": 2, "quotes_alone": alone})
    scores = sorted((0.1 * len(first) - 0.1 * at for at in range(len(first))), reverse=True)
    there = [
        offer(64 * at, tokens, score, 1 / 16 if sure else None)
        for (at, tokens), score in zip(first[:groups], scores, strict=False)
    ]
    outcome = SearchOutcome(tuple(there), True, 0.0)
    found, new = with_second(outcome, [offer(64 * at, tokens, 9.0, 0.5) for at, tokens in second], config)
    assert found.offers[len(found.offers) - len(new) :] == tuple(new)
    kept = found.offers[: len(found.offers) - len(new)]
    assert kept == tuple(there[: len(kept)])
    assert len(new) <= groups // 4
    assert len(kept) == len(there) or (not alone and new)
    assert len(found.offers) <= groups + alone * (groups // 4)
    assert len({one.begin for one in found.offers}) == len(found.offers)
    assert sorted((one.score for one in found.offers), reverse=True) == [one.score for one in found.offers]
    if new and not alone:
        assert sum(one.pages[0].end - one.pages[0].begin for one in found.offers) <= config.frame.recalled_tokens
    told = [one.confidence for one in found.offers]
    assert all(one is None for one in told) or (None not in told and outcome.confidence is not None)
    if sure:
        assert (found.confidence or 0) <= (outcome.confidence or 0) + 1e-9
    assert dataclasses.replace(found, offers=outcome.offers) == outcome
