"""Whether a question goes on from another is told at once, however long it is."""

from __future__ import annotations

import pytest

from everlong.text.follow_up import is_follow_up


@pytest.mark.parametrize("unit", [" ", "how ", "?", "a", "\n", "it ", "the "])
@pytest.mark.parametrize("begin", ["how", "how tall", "and", ""])
def test_a_long_question_goes_on_from_nothing(begin: str, unit: str) -> None:
    # With a pattern that tries every split of the blanks, a million of them would take hours.
    assert not is_follow_up(f"{begin}{unit * 1_000_000}.")


@pytest.mark.parametrize("question", ["How tall?", "How  ??", "why ? ?", "who looks?", "And?", "Who looks after it?"])
def test_a_short_one_may(question: str) -> None:
    assert is_follow_up(question)
