"""What a sentence leaves unsaid because it stands where it does: what its source is called, and who speaks."""

from __future__ import annotations

import bisect
import re
from collections.abc import Collection

_ENDING = re.compile(r"\.[A-Za-z]\w{0,4}$")  # of a file's name
_SPACE = re.compile(r"[\s_]+")
_SPEAKER = re.compile(r"(?:\A|(?<=\n))([^\W\d_][\w .'-]{0,30}): ")  # begins a turn of a dialogue
_BLANK = re.compile(r"\n[^\S\n]*\n")  # ends one that no other turn ends
_DATE = re.compile(r"[\d.-]{1,10}")
_SOURCE_CHARACTERS = 400  # of a source's name, its last: no more of it is read
_LONGEST_WITH_DIGITS = 6  # characters; a longer word that has digits, and is no date, is a hash or the like


def title_of(source: str) -> str:
    """Return the words of a source's name: the last part of a path, without a file's ending and without hashes."""
    name = _ENDING.sub("", source[-_SOURCE_CHARACTERS:].rstrip("/\\").replace("\\", "/").rpartition("/")[2])
    words = (word for word in _SPACE.split(name) if word)
    return " ".join(
        word
        for word in words
        if len(word) <= _LONGEST_WITH_DIGITS or not re.search(r"\d", word) or _DATE.fullmatch(word)
    )


def without_speaker(text: str) -> tuple[str, str]:
    """Return who speaks, where a text begins with that, and what they say."""
    found = _SPEAKER.match(text)
    return ("", text) if found is None else (found.group(1), text[found.end() :])


def without_names(question: str, names: Collection[str]) -> str:
    """Return a question without these names, and without what makes them genitives."""
    each = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    if not each:
        return question
    return " ".join(re.sub(rf"(?<!\w)(?:{each})(?!\w)(?:['\u2019]s?(?!\w))?", " ", question, flags=re.I).split())


def is_talk(text: str) -> bool:
    """Return whether a line of a text begins with who speaks."""
    return bool(_SPEAKER.search(text))


class Turns:
    """The turns of a dialogue in a text, by their characters."""

    def __init__(self, text: str) -> None:
        found = [(match.start(), match.group(1)) for match in _SPEAKER.finditer(text)]
        ends = [(match.start() + 1, "") for match in _BLANK.finditer(text)] if found else []
        self._turns = sorted(found + ends)
        self._begins = [begin for begin, _ in self._turns]

    def speaker_of(self, at: int) -> str:
        """Return who speaks in a sentence that begins at this character, unless it says so itself; "" for nobody."""
        before = bisect.bisect_right(self._begins, at) - 1
        if before < 0 or self._begins[before] == at:
            return ""
        return self._turns[before][1]
