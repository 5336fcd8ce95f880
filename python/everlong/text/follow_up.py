"""Whether a question goes on from what was said before: "Who looks after it?", "And the second one?"."""

from __future__ import annotations

import re

# Words that stand for something named before. "that" is left out, as most are conjunctions.
_REFERS = re.compile(
    r"\b(it|its|they|them|their|theirs|he|him|his|she|her|hers|this|these|those|ones?|there|same|former|latter|both"
    r"|(the|which|what|any) others?|the (first|second|third|last)|(what|how) about|else)\b",
    re.IGNORECASE,
)
_BEGINS = re.compile(r"\s*(and|but|so|then|why|how so|really)\b", re.IGNORECASE)
_SHORT = re.compile(r"\s*(how|which|when|where|who|whose|what|why)(\s+\w+)?[\s?]*", re.IGNORECASE)  # "How tall?"
_LONGEST = 2000  # characters: who says more says what is meant


def is_follow_up(question: str) -> bool:
    """Return whether a question, in English, needs the turn before it to be understood; a guess by its words."""
    if len(question) > _LONGEST:
        return False
    return bool(_REFERS.search(question) or _BEGINS.match(question) or _SHORT.fullmatch(question))
