"""A text's words, for code that compares words alone."""

from __future__ import annotations

import re

_UNSPACED = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_APART = re.compile(rf"[{_UNSPACED}]|[^{_UNSPACED}]+")


def words_in(text: str) -> list[str]:
    """Return runs of letters, digits and underscores, in lower case, in their order."""
    return re.findall(r"\w+", text.lower())


def words_apart(text: str) -> list[str]:
    """Return the same, with each letter of a script that sets no spaces as a word of its own."""
    return [part for word in words_in(text) for part in _APART.findall(word)]
