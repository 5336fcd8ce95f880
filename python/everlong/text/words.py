"""A text's words, for code that compares words alone."""

from __future__ import annotations

import re

_UNSPACED = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
# Chinese and Japanese put nothing between words: each of their characters counts as one.
_WITHOUT_SPACES = "\u3040-\u30ff\u3400-\u9fff"
_WORD = re.compile(rf"[{_WITHOUT_SPACES}]|[^\W_{_WITHOUT_SPACES}]+")
_NAME = re.compile(r"(?<=[\w,;:] )[^\W\d_a-z]\w+")
_APART = re.compile(rf"[{_UNSPACED}]|[^{_UNSPACED}]+")


def words_in(text: str) -> list[str]:
    """Return runs of letters, digits and underscores, in lower case, in their order."""
    return re.findall(r"\w+", text.lower())


def words_apart(text: str) -> list[str]:
    """Return the same, with each letter of a script that sets no spaces as a word of its own."""
    return [part for word in words_in(text) for part in _APART.findall(word)]


def names_in(text: str) -> list[str]:
    """Return words that begin with a capital behind a word, as names do in mid-sentence."""
    return _NAME.findall(text)


def states(reply: str, answer: str) -> bool:
    """Return whether the answer's words stand in a reply, whole and in a row; case and punctuation do not count.

    An answer without a letter or a digit never does.
    """
    return bool(_plain(answer)) and place_of(answer, reply) >= 0


def place_of(sought: str, text: str) -> int:
    """Return where whole words first stand in a text, without case and punctuation; -1 where they do not."""
    return f" {_plain(text)} ".find(f" {_plain(sought)} ")


def _plain(text: str) -> str:
    return " ".join(_WORD.findall(text.lower()))
