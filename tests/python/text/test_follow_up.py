"""A question that goes on from the turn before is searched by what was said there, too; others are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import everlong
from everlong.text.follow_up import is_follow_up
from support import SMALL, byte_tokenizer, tiny_model


@pytest.mark.parametrize(
    "question",
    ["Who looks after it?", "And the second one?", "What about Leeds?", "Is he still there?", "Why?", "How tall?"],
)
def test_these_go_on(question: str) -> None:
    assert is_follow_up(question)


@pytest.mark.parametrize(
    "question",
    [
        "Who said that the lamp was out?",
        "What is the budget of the harbour?",
        "When was the old mill built?",
        "budget 1871",
        "Where is Leeds?",
    ],
)
def test_these_stand_alone(question: str) -> None:
    assert not is_follow_up(question)


def searches(mm: everlong.MemoryModel, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which every search of the memory adds what it looks for."""
    searched: list[str] = []
    tap = mm.searcher.tap

    def told(prompt: Any) -> Any:
        tapped = tap(prompt)
        searched.append(mm.tokenizer.decode(tapped.token_ids.tolist()))
        return tapped

    monkeypatch.setattr(mm.searcher, "tap", told)
    return searched


def test_the_turn_before_counts_for_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), None, SMALL, pack=None) as mm:
        mm.read("Nothing of this matters to anybody here. " * 40)
        searched = searches(mm, monkeypatch)
        mm.recall("Who looks after it?")
        mm.generate("Where is the QUARTZ box?", max_new_tokens=2)
        mm.recall("Who looks after it?")
        mm.recall("What is the colour of the sky?")
        turns = [{"role": "user", "content": "Is the VORTEX open?"}, {"role": "assistant", "content": "Yes."}]
        asked = [*turns, {"role": "user", "content": "And who keeps it?"}]
        if mm.tokenizer.chat_template:
            mm.recall(messages=asked)
            assert set("VORTEX") & set(searched[-1])
        assert searched[0] == "Who looks after it?"
        assert searched[1] == "Where is the QUARTZ box?"
        assert searched[2].endswith("Who looks after it?")
        assert set("QUARTZ") <= set(searched[2][: -len("Who looks after it?")])
        assert searched[3] == "What is the colour of the sky?"
        mm.read("Other text is read now. " * 30)
        mm.recall("Who looks after it?")
        assert searched[-1] == "Who looks after it?"


def test_the_turn_before_counts_when_a_memory_is_opened_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model, folder = tiny_model(), tmp_path / "m.everlong"

    def asked(question: str, *, read: bool) -> str:
        with everlong.MemoryModel(model, byte_tokenizer(), folder, SMALL, pack=None) as mm:
            searched = searches(mm, monkeypatch)
            if read:
                mm.read("Other text is read now. " * 30)
            mm.recall(question)
        return searched[-1]

    with everlong.MemoryModel(model, byte_tokenizer(), folder, SMALL, pack=None) as mm:
        mm.read("Nothing of this matters to anybody here. " * 40)
        mm.generate("Is the ZINC jar full?", max_new_tokens=2)
        mm.generate("Where is the QUARTZ box?", max_new_tokens=2)
    again = asked("Who looks after it?", read=False)
    assert again.endswith("Who looks after it?")
    before = again[: -len("Who looks after it?")]
    assert set("QUARTZ") <= set(before)
    assert "I" not in before  # of the turn before that
    assert asked("Who looks after it?", read=True) == "Who looks after it?"
