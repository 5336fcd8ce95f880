"""A question for what holds now gets the newest of several statements; others get all."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import everlong
from everlong.retrieval.older_quotes import Quote, without_older
from everlong.retrieval.quotes import Sentence
from support import SMALL, byte_tokenizer, tiny_model

MOVED = [
    ("Mara: By the way, I live in Turin these days.", 0.45),
    ("Liv: By the way, I have moved to Malmo for good.", 0.39),
    ("Mara: By the way, I have moved to Leeds for good.", 0.38),
    ("Mara: nice . what do you do ?", 0.44),
    ("Mara: lovely weather here", 0.2),
]
BUDGET = [("The budget is 50,000 crowns.", 0.5), ("The budget is 55,000 crowns.", 0.1), ("The plan is ready.", 0.6)]


def kept(told: Sequence[tuple[str, float]], question: str, *, at_once: bool = False) -> list[tuple[str, bool]]:
    """Return which of the texts, told in this order, or `at_once`, are left, and which of them are marked."""
    quotes = [
        Quote(Sentence(0, 10 * at, 10 * at + 10, 1.0), text, alike, (0.0, at, 0), ("one" if at_once else at,))
        for at, (text, alike) in enumerate(told)
    ]
    return [(told[one.begin // 10][0], one.newest) for one in without_older(quotes, question)]


def test_what_holds_now_is_what_one_speaker_said_last() -> None:
    left = kept(MOVED, "In which city does Mara live now?")
    assert left == [(MOVED[1][0], False), (MOVED[2][0], True), (MOVED[3][0], False), (MOVED[4][0], False)]


@pytest.mark.parametrize(
    "question",
    [
        *("In which two cities has Mara lived before?", "Where did Mara live?", "Where has Mara ever lived?"),
        *("Mara, Turin", "What is Mara's former city now?", "Which cities does Mara now know?", "Who is in Turin now?"),
    ],
)
def test_other_times_keep_all(question: str) -> None:
    assert kept(MOVED, question) == [(text, False) for text, _ in MOVED]


def test_without_now_only_what_has_the_same_words_is_replaced() -> None:
    assert kept(MOVED, "Where does Mara live?") == [(text, False) for text, _ in MOVED]
    assert kept(BUDGET, "What is the budget?") == [(BUDGET[1][0], True), (BUDGET[2][0], False)]
    assert kept(BUDGET, "What is the budget, and what was it before?") == [(text, False) for text, _ in BUDGET]
    numbers = [(f"One of the numbers for the violin is {number}.", 0.5) for number in range(3)]
    assert kept(numbers, "What are all the numbers for the violin?") == [(text, False) for text, _ in numbers]


def test_what_was_told_at_once_replaces_nothing() -> None:
    assert kept(BUDGET, "What is the budget?", at_once=True) == [(text, False) for text, _ in BUDGET]
    assert kept(MOVED, "In which city does Mara live now?", at_once=True) == [(text, False) for text, _ in MOVED]


@pytest.mark.parametrize(
    ("told", "question"),
    [
        (("Ana Lopez works in the sales team.", "Ben Okoro works in the sales team."), "What is the sales team?"),
        (("Room 12 is free on Monday.", "Room 14 is free on Monday."), "Where is a room free on Monday?"),
        (("Mara's former boss is Tom Hill.", "Mara's boss is Ann Reed."), "What is the name of Mara's boss?"),
    ],
)
def test_another_thing_replaces_nothing(told: Sequence[str], question: str) -> None:
    assert kept([(text, 0.5) for text in told], question) == [(text, False) for text in told]


def test_two_things_in_one_form_stay() -> None:
    told = [("The harbour budget is 50,000 crowns.", 0.5), ("The bridge budget is 55,000 crowns.", 0.5)]
    assert kept(told, "What is the harbour budget?") == [(text, False) for text, _ in told]


def test_a_copy_later_replaces_nothing() -> None:
    told = [("The budget is 50 crowns.", 0.5), ("The budget is 50 crowns.", 0.5)]
    assert kept(told, "What is the budget?") == [(text, False) for text, _ in told]


def test_the_memory_quotes_the_newest_and_cites_all() -> None:
    config = SMALL.changed(search={"index": ("words",), "groups": 4}, answer={"quotes": 4, "quotes_alone": True})
    filler = "Somebody walked along the quiet river and counted every tree. " * 8
    with everlong.MemoryModel(tiny_model(), byte_tokenizer(), None, config, pack=None) as mm:
        for room in (11, 12, 13):
            mm.read(f"{filler}Percy Northrup went to room {room}. {filler}", source=f"day {room}")
        mm.read(filler * 4)
        answer = mm.generate("Where is Percy Northrup?", max_new_tokens=2, remember=False)
        quoted = [line for line in answer.quoted if "Northrup" in line]
        assert quoted == ["[day 13, newest] Percy Northrup went to room 13."]
        assert {"day 11", "day 12", "day 13"} <= {one.source for one in answer.recalled}
        both = mm.generate("Where was Percy Northrup before?", max_new_tokens=2, remember=False)
        assert len([line for line in both.quoted if "Northrup" in line]) == 3
        mm.config = mm.config.changed(search={"newest_first": False})
        every = mm.generate("Where is Percy Northrup?", max_new_tokens=2, remember=False)
        assert len([line for line in every.quoted if "Northrup" in line]) == 3
