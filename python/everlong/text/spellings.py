"""Other spellings of the same letters: ligatures, as books are set, and letters apart from their marks.

Whoever asks types letters. What was read stays as it was written, and so a search looks for both.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

_WORD = re.compile(r"[\w\u0300-\u036f]+")
_LIGATURES = {"ffi": "\ufb03", "ffl": "\ufb04", "ff": "\ufb00", "fi": "\ufb01", "fl": "\ufb02", "st": "\ufb06"}
# A typeface may have only some: all of f, those of one f, those of two letters, and all.
_SETS = tuple(
    re.compile("|".join(letters))
    for letters in (("ffi", "ffl", "ff", "fi", "fl"), ("fi", "fl"), ("ff", "fi", "fl"), tuple(_LIGATURES))
)
# Letters by their look: ligatures, and the forms of Hebrew and Arabic letters within words.
_BY_LOOK = re.compile("[\ufb00-\ufb06\ufb13-\ufb17\ufb1d-\ufd3d\ufd50-\ufdff\ufe70-\ufefc]+")


def as_letters(text: str) -> str:
    """Return a text with the letters that its ligatures, and its letters by their look, stand for."""
    return text if text.isascii() else _BY_LOOK.sub(lambda found: unicodedata.normalize("NFKC", found[0]), text)


def spelled_otherwise(text: str) -> list[str]:
    """Return the other spellings of a text's words, each once, in the order of the words."""
    return list(dict.fromkeys(one for word in _WORD.findall(text) for one in _spellings(word) if one != word))


def _spellings(word: str) -> Iterator[str]:
    for ligatures in _SETS:
        yield ligatures.sub(lambda found: _LIGATURES[found[0]], word)
    if not word.isascii():
        yield from (unicodedata.normalize(form, word) for form in ("NFC", "NFKC", "NFD"))
