"""A text's words, for code that compares words alone."""

from __future__ import annotations

import re


def words_in(text: str) -> list[str]:
    """Return runs of letters, digits and underscores, in lower case, in their order."""
    return re.findall(r"\w+", text.lower())
