"""Other spellings of a question's words."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from everlong.text.spellings import as_letters, spelled_otherwise


def test_words_as_books_are_set() -> None:
    found = spelled_otherwise("The office of Griffith; a firefly")
    assert {"o\ufb03ce", "of\ufb01ce", "o\ufb00ice", "Gri\ufb03th", "\ufb01re\ufb02y"} <= set(found)
    assert "The" not in found
    assert spelled_otherwise("A plain word, 17 of them") == []


def test_marks_apart_and_letters_by_their_look() -> None:
    assert spelled_otherwise("caf\u00e9") == ["cafe\u0301"]
    assert spelled_otherwise("cafe\u0301") == ["caf\u00e9"]
    assert as_letters("\ufb01nal o\ufb00er, \ufefb \u00bd \u2026") == "final offer, \u0644\u0627 \u00bd \u2026"


@given(st.text(st.sampled_from("fils tae\u00e9\u00fc\ufb01\ufb02,"), max_size=40))
def test_each_spelling_has_the_letters_of_a_word(text: str) -> None:
    words = {unicodedata.normalize("NFKC", word.strip(",")) for word in text.replace(",", " ").split()}
    for spelled in spelled_otherwise(text):
        assert unicodedata.normalize("NFKC", spelled) in words
    assert as_letters(text) == "".join(unicodedata.normalize("NFKC", one) if one > "\ufb00" else one for one in text)
