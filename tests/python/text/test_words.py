"""Words of a text: whether an answer stands in a reply."""

import pytest

from everlong.text.words import states


@pytest.mark.parametrize(
    ("reply", "answer", "expected"),
    [
        ("It was Mr. Micawber's house.", "micawber", True),
        ("The year 1851, as they say.", "1851", True),
        ("The year 18510.", "1851", False),
        ("A house of the Micawbers", "Micawber", False),
        ("the house, Micawber", "Micawber house", False),
        ("In Z\u00fcrich.", "z\u00fcrich", True),
        ("In Z\u00fcrich.", "rich", False),
        # "The answer is Tokyo", and Kyoto, in Japanese.
        ("\u7b54\u3048\u306f\u6771\u4eac\u3067\u3059\u3002", "\u6771\u4eac", True),
        ("\u7b54\u3048\u306f\u4eac\u90fd\u3067\u3059\u3002", "\u6771\u4eac", False),
        ("...", "...", False),
        ("", "a", False),
    ],
)
def test_an_answer_stands_in_a_reply_as_whole_words(reply: str, answer: str, expected: bool) -> None:
    assert states(reply, answer) is expected
