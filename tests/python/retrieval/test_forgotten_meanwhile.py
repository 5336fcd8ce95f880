"""What another thread forgets while a question is answered is left out of it. The question does not fail."""

from __future__ import annotations

from typing import Any

import pytest

import everlong
from everlong.errors import MemoryNotFoundError
from everlong.frame.frame import Frame
from everlong.frame.kv_zones import KvZones
from everlong.generation import answer_generator
from everlong.retrieval.citations import CitationBuilder
from everlong.retrieval.quotes import Sentence, words_of
from everlong.retrieval.searcher import Searcher
from support import SMALL, byte_tokenizer, random_text, tiny_model

QUESTION = "where the violet key of Marlene lies"
TOLD = "The violet key of Marlene lies beneath the third stone. "


@pytest.fixture(params=["auto", "text", "kv"])
def mm(request: pytest.FixtureRequest) -> Any:
    config = SMALL.changed(search={"index": ("lexical",)}, answer={"quotes": 1, "recall_mode": request.param})
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), None, config) as mm:
        mm.read(TOLD * 3, "told")
        for seed in range(3):
            mm.read(random_text(400, seed=seed), f"text {seed}")
        assert any(one.source == "told" for one in mm.recall(QUESTION))
        yield mm


def forgets_before(mm: everlong.MemoryModel, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """Forget what was told right before the first call of `owner.name`."""
    done = getattr(owner, name)

    def forgotten_first(*given: Any, **named: Any) -> Any:
        monkeypatch.setattr(owner, name, done)
        assert mm.memory.forget(source="told") > 0
        return done(*given, **named)

    monkeypatch.setattr(owner, name, forgotten_first)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (CitationBuilder, "found"),
        (Searcher, "quotes"),
        (answer_generator, "words_of"),
        (Frame, "_bringing_back"),
        (KvZones, "place_in_steps"),
    ],
    ids=["cited", "quoted", "words", "brought back", "placed"],
)
def test_a_question_goes_on_without_it(
    mm: everlong.MemoryModel, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    forgets_before(mm, monkeypatch, owner, name)
    assert mm.generate(QUESTION, 3, remember=False).tokens == 3
    assert mm.memory.blocks("told") == []
    assert all(one.source != "told" for one in mm.last_recalled)
    assert not mm.frame.steps.broken
    assert mm.generate(QUESTION, 3).tokens == 3


@pytest.mark.parametrize("call", ["recall", "find", "survey"])
def test_a_search_goes_on_without_it(mm: everlong.MemoryModel, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    name = {"recall": "found", "find": "places", "survey": "lines"}[call]
    forgets_before(mm, monkeypatch, CitationBuilder, name)
    found = getattr(mm, call)(QUESTION) if call != "survey" else mm.survey(QUESTION, 3).recalled
    assert all(one.source != "told" for one in found)


def test_words_that_are_gone_are_not_said(mm: everlong.MemoryModel) -> None:
    core, told = mm.memory.core, mm.memory.blocks("told")[0].span
    other = mm.memory.blocks("text 1")[0].span
    sentences = [Sentence(0, first, first + 8, 1.0) for first, _ in (told, other)]
    assert len(words_of(core, mm.tokenizer, sentences)) == 2
    mm.memory.forget(source="told")
    assert len(words_of(core, mm.tokenizer, sentences)) == 1


def test_pages_that_a_caller_named_are_missed(mm: everlong.MemoryModel) -> None:
    named = [one for one in mm.recall(QUESTION) if one.source == "told"]
    mm.memory.forget(source="told")
    with pytest.raises(MemoryNotFoundError):
        mm.generate(QUESTION, 3, recall=named)
    assert mm.generate(QUESTION, 3).tokens == 3
