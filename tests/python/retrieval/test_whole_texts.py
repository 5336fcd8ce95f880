"""Short texts are quoted as wholes, and stand once among the quotes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import everlong
from everlong.retrieval import whole_texts
from everlong.retrieval.quotes import Sentence
from everlong.retrieval.whole_texts import ROOM, SHORT, with_whole_texts
from support import SMALL, byte_tokenizer, tiny_model
from support.examples import examples

CONFIG = SMALL.changed(
    search={"index": ("words",), "groups": 8, "neighbours": 0},
    answer={"quotes": 4, "quotes_alone": True},
    frame={"recalled_tokens": 512},
)
NOTE = "The harbour master is Ada Quill. She was born in Ghent, on a barge."
QUESTION = "Where was the harbour master born?"


def quoted(*reads: tuple[str, dict[str, Any]], **how: Any) -> tuple[str, ...]:
    """Return what is quoted for the question behind these readings, each a text and `read`'s arguments."""
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), None, CONFIG) as mm:
        for text, arguments in reads:
            mm.read(text, **arguments)
        mm.read("x" * 700, source="end")  # what stands in the frame is not recalled
        return mm.generate(QUESTION, max_new_tokens=1, remember=False, chat=False, **how).quoted


def test_a_note_stands_as_a_whole_and_once() -> None:
    lines = quoted((NOTE, {"source": "note"}), ("Ada likes plums. They are sweet.", {"source": "other"}))
    assert [line for line in lines if "harbour" in line] == [f"[note] {NOTE}"]
    assert sum("Ghent" in line for line in lines) == 1


def test_its_source_s_name_stands_in_front_alone() -> None:
    assert f"[note] {NOTE}" in quoted((f"note\n{NOTE}", {"source": "note"}))


@pytest.mark.parametrize(
    "text",
    [
        NOTE + " Nothing else is known of her." * 8,  # longer than SHORT
        "Mara: The harbour master is Ada Quill.\nKofi: I was in Ghent.",
        "Session 4\n\nThe harbour master is Ada Quill.\nMara: I was in Ghent.",
    ],
)
def test_of_a_longer_text_and_of_a_talk_the_sentence_stands(text: str) -> None:
    lines = [line for line in quoted((text, {"source": "note"})) if "harbour" in line]
    assert len(lines) == 1
    assert lines[0].endswith("Ada Quill.")


def test_what_was_read_under_one_name_later_is_a_text_of_its_own() -> None:
    lines = quoted(
        (NOTE, {"source": "log", "happened": "2026-01-02"}),
        ("The weather was fine. It rained at night.", {"source": "log", "happened": "2026-01-03"}),
    )
    assert f"[log, 2026-01-02] {NOTE}" in lines


def test_what_a_filter_hides_of_a_text_is_not_quoted() -> None:
    lines = quoted(
        ("The harbour master is Ada Quill.", {"source": "note", "tags": ["open"], "more": True}),
        ("She was born in Ghent, on a barge.", {"source": "note", "tags": ["secret"]}),
        where=everlong.Where(tags=["open"]),
    )
    assert lines
    assert not any("Ghent" in line for line in lines)


def test_texts_of_one_name_stay_apart() -> None:
    lines = quoted(
        (NOTE, {"source": "README.md", "origin": "/a/README.md"}),
        ("Rules of the harbour. No smoking there.", {"source": "README.md", "origin": "/b/README.md"}),
    )
    assert f"[README.md] {NOTE}" in lines
    assert not any("smoking" in line and "Ada" in line for line in lines)


def test_a_text_that_is_forgotten_meanwhile_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    block_of = whole_texts.block_of

    def forgetting(core: Any, sentence: Sentence) -> Any:
        block = block_of(core, sentence)
        if block is not None and block.source == "note":
            core.blocks.forget([one.id for one in everlong.Where(source="note").blocks(core)])
        return block

    monkeypatch.setattr(whole_texts, "block_of", forgetting)
    late = "The harbour master was born late. It freezes."
    lines = quoted((NOTE, {"source": "note"}), (late, {"source": "other"}))
    assert not any("Ada" in line for line in lines)
    assert any("born late" in line for line in lines), lines


def test_a_first_line_that_the_head_has_not_whole_stays() -> None:
    name = f"{'n' * 70} harbour budget of 2026"
    [line] = [line for line in quoted((f"{name}\n{NOTE}", {"source": name})) if "Ada" in line]
    assert "harbour budget of 2026" in line


spans = st.integers(0, 2000).flatmap(lambda begin: st.tuples(st.just(begin), st.integers(begin + 1, begin + 90)))


@examples(100)
@given(st.lists(st.tuples(spans, st.integers(0, SHORT)), min_size=1, max_size=12))
def test_they_take_no_more_than_their_room(places: list[tuple[tuple[int, int], int]]) -> None:
    chosen = [Sentence(at, begin, end, 1.0) for at, ((begin, end), _) in enumerate(places)]
    short = {one: (one.stream, one.begin, one.end + more) for one, (_, more) in zip(chosen, places, strict=True)}
    quotes = with_whole_texts(chosen, short)
    assert [one.stream for one in quotes] == [one.stream for one in chosen]
    alone = sum(one.end - one.begin for one in chosen)
    assert sum(one.end - one.begin for one in quotes) <= max(ROOM, alone)
    for quote, one in zip(quotes, chosen, strict=True):
        assert quote in (one, dataclasses.replace(one, end=short[one][2]))
    if alone <= ROOM - SHORT:
        assert quotes[0].end == short[chosen[0]][2]  # the best one has its text
