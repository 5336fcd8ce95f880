"""`find` looks at all that was archived, whatever stands in the frame."""

from __future__ import annotations

import pytest

import everlong
from support import TINY_MEMORY, byte_tokenizer, changed, open_model, tiny_model
from support.chatting import FACTS, chat_memory


def test_what_stands_in_the_frame_is_found_too() -> None:
    with open_model(config=TINY_MEMORY) as mm:
        assert mm.find("anything at all") == ()
        mm.read(FACTS["garden"], source="garden")
        assert mm.recall("garden shed pass key") == ()
        (found,) = mm.find("garden shed pass key")
        assert (found.source, found.text) == ("garden", FACTS["garden"])


@pytest.mark.parametrize("source", FACTS)
def test_the_best_passage_is_first_and_nothing_is_kept(source: str) -> None:
    with chat_memory() as mm:
        before, text = mm.stream_tokens, FACTS[source]
        found = mm.find(text, k=3)
        assert found[0].source == source
        assert text in found[0].text
        assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
        assert len({one.span for one in found}) == len(found) == 3
        assert len(mm.find(text, k=1)) == 1
        assert (mm.stream_tokens, mm.memory.blocks(where=everlong.Where(role="asked"))) == (before, [])


def test_a_filter_holds_and_nonsense_is_refused() -> None:
    with chat_memory() as mm:
        found = mm.find("the pass key of the garden shed", k=9, where=everlong.Where(source="kitchen"))
        assert {one.source for one in found} == {"kitchen"}
        for wrong in (0, -1):
            with pytest.raises(ValueError, match="expected 1 or more"):
                mm.find("garden", k=wrong)
        with pytest.raises(ValueError, match="empty"):
            mm.find("")


def test_events_and_more_passages_than_there_is_room_for() -> None:
    small = changed(TINY_MEMORY, recalled_tokens=128)
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), None, small) as mm:
        for year in range(2001, 2021):
            mm.read(f"In the year {year} the river rose. " * 9, source=str(year), happened=f"{year}-05-01")
        assert len(mm.find("the river rose", k=12)) == 12
        where = everlong.Where(happened_after="2010-01-01", happened_before="2012-01-01")
        assert {one.source for one in mm.find("the river rose", k=9, where=where)} == {"2010", "2011"}


def test_what_was_said_before_does_not_count() -> None:
    """A question that goes on from the turn before, to the model, is one by itself here."""
    with chat_memory() as mm:
        asked = "And where is it?"
        before = mm.find(asked, k=3)
        mm.generate("Which recipe wants four eggs and a lemon?", 1)
        assert [one.span for one in mm.find(asked, k=3)] == [one.span for one in before]
