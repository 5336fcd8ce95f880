"""A text's words, as those who compare words alone see them."""

from __future__ import annotations

import re


def words_in(text: str) -> list[str]:
    """Runs of letters, digits and underscores, in lower case, in their order."""
    return re.findall(r"\w+", text.lower())
