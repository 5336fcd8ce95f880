"""What a sentence leaves unsaid: what its source is called, and who speaks."""

from __future__ import annotations

import pytest

from everlong.text.unit_context import Turns, title_of, without_names, without_speaker


@pytest.mark.parametrize(
    ("source", "title"),
    [
        ("papers/2024/the_lease of-1999.txt", "the lease"),
        ("journal_2024-11-30.md", "journal 2024-11-30"),
        ("C:\\Users\\ada\\notes.md", "notes"),
        ("session 12", "session 12"),
        ("https://example.org/wiki/Blue_whale/", "Blue whale"),
        ("3f2a9c71-aaaa-4b1d-9d3e-1c2b3a4d5e6f.pdf", ""),
        ("Dr. No", "Dr. No"),
        ("St. Ives (novel)", "St. Ives (novel)"),
        ("", ""),
        ("/", ""),
    ],
)
def test_a_source_is_called_by_the_words_of_its_name(source: str, title: str) -> None:
    assert title_of(source) == title


def test_a_sentence_knows_who_speaks_unless_it_says_so() -> None:
    text = "Session 1\n\nMara: Hello. I am back.\nAt last.\nJean-Luc O'Hara: So am I. Good.\n\nThe end. It was late."
    turns = Turns(text)
    expected = {
        "Session": "",
        "Mara:": "",
        "I am back": "Mara",
        "At last": "Mara",
        "Jean-Luc": "",
        "So am": "Jean-Luc O'Hara",
        "Good": "Jean-Luc O'Hara",
        "The end": "",
        "It was": "",
    }
    assert {words: turns.speaker_of(text.index(words)) for words in expected} == expected
    assert Turns("No dialogue here. At all.").speaker_of(5) == ""
    assert Turns("Kofi: Yes. No.").speaker_of(11) == "Kofi"


def test_who_speaks_is_told_from_what_they_say() -> None:
    assert without_speaker("Mara: By the way, I moved.") == ("Mara", "By the way, I moved.")
    assert without_speaker("By the way: nothing. Mara: yes") == ("By the way", "nothing. Mara: yes")
    assert without_speaker("It is 10:30 now.") == ("", "It is 10:30 now.")


def test_a_question_without_names() -> None:
    assert without_names("What is Mara's job, and Liv\u2019s?", {"Mara", "Liv"}) == "What is job, and ?"
    assert without_names("Does Mary Ann know Ann?", {"Ann", "Mary Ann"}) == "Does know ?"
    assert without_names("Does Maraca know?", {"Mara"}) == "Does Maraca know?"
    assert without_names("where does mara live, mr. x.?", {"Mara", "Mr. X."}) == "where does live, ?"
    assert without_names("Who?", ()) == "Who?"
