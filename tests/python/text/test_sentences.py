"""Where sentences stand: 60 texts of many kinds, and what holds for any text."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlong.text.sentences import sentences
from support.repository import TESTS

CASES: dict[str, list[dict[str, Any]]] = json.loads((TESTS / "data/sentences.json").read_text("utf-8"))
# What is cut too often: "eq. 7", "approx. 40", "Chapter 2. The storm", and a German date.
MISSED = {"Cf. Fig. 3 and ", "It is about 5 f", "Chapter 2. The ", "Der Hafen wurde"}


def said(text: str) -> list[str]:
    return [text[first:last] for first, last in sentences(text)]


@pytest.mark.parametrize("kind", CASES)
def test_sentences_of_each_kind(kind: str) -> None:
    wrong = [case["text"][:15] for case in CASES[kind] if said(case["text"]) != case["sentences"]]
    assert set(wrong) <= MISSED


def test_how_many_are_right() -> None:
    cases = list(itertools.chain.from_iterable(CASES.values()))
    assert len(cases) == 60
    assert sum(said(case["text"]) == case["sentences"] for case in cases) >= 56


@pytest.mark.parametrize(
    "text",
    [
        "```\na. b. C\n\nD. e.\n```",
        "````md\n```\nOne. Two.\n```\nThree. Four.\n````",
        "```c++\nint a; // One. Two.\nint b;",  # ends elsewhere
        "name | what\n--- | ---\nMarsh. | First. Second.",
        "+-----+------+\n| A.  | B. C |\n+-----+------+",
        "a\tOne. Two.\nb\tThree. Four.",
        "    def f(x):\n        return x.y  # Why. Because.\n    f(1)",
    ],
)
def test_code_and_tables_are_whole_among_prose(text: str) -> None:
    assert said(text) == [text.strip()]
    assert said(f"Before it. See this:\n\n{text}")[2:] == [text.strip()]


def test_none_goes_on_where_somebody_else_speaks() -> None:
    turns = [
        "Mara: what does he want",
        "Jean-Luc O'Hara: come home ,\nand soon",
        "Mara: it is late . we stay",
        "Kofi: so",
    ]
    assert said("\n".join(turns)) == turns
    assert said("It is late:\ncome home\nand then: stay") == ["It is late:\ncome home", "and then: stay"]
    assert said("Mara: One. Two.\nKofi: Three.") == ["Mara: One.", "Two.", "Kofi: Three."]
    assert said("See this,\nhttp://a.b/c: d") == ["See this,\nhttp://a.b/c: d"]


def test_prose_behind_them_is_prose() -> None:
    assert said("```\na. B\n```\nOne. Two.") == ["```\na. B\n```", "One.", "Two."]
    assert said("A. B.\n```\nOne thing. Two things.") == ["A. B.", "```", "One thing.", "Two things."]
    assert said("One | two. Three.") == ["One | two.", "Three."]
    assert said("# Who. And why\nIt was late.") == ["# Who. And why", "It was late."]
    assert said("    An indented line. And another.") == ["An indented line.", "And another."]


@given(st.text(alphabet="aB1.!? \n\t|`~#-(\"'\u2026\u3002\u0434\U0001f600", max_size=80))
def test_sentences_are_all_of_a_text_in_order(text: str) -> None:
    places = sentences(text)
    for (_, end), (begin, _) in itertools.pairwise(places):
        assert end <= begin
    assert "".join("".join(said(text)).split()) == "".join(text.split())
    assert all(one == one.strip() != "" for one in said(text))
